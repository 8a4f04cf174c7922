//! Linear regression by gradient descent, end to end.
//!
//! Two programs are traced, written as text, compiled and run on a CPU device. One generates the
//! data: random inputs, and targets that are a noisy linear map of them. The other is one step of
//! gradient descent; it donates the weights, so that each step updates them in place.
//!
//! ```sh
//! cargo run --release -p fullshard-graph --example regression
//! ```

use fullshard_graph::{Argument, DType, Key, Program, TensorType, constant, value_and_grad};
use fullshard_pjrt::plugins::{Platform, Store, find_or_install};
use fullshard_pjrt::{Array, Client, ClientOptions, CompileOptions, LoadedExecutable, Plugin};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

const EXAMPLES: usize = 256;
const TRUTH: [f32; 4] = [2.0, -1.0, 0.5, 3.0];
const STEPS: usize = 100;

fn main() -> Result<()> {
    let client = cpu()?;

    // The data. The program has no arguments, so its random numbers are the same every time.
    let problem = Program::trace("problem", &[], |_| {
        let key = Key::constant(0)?;
        let inputs = key.named("inputs")?.draw(&[EXAMPLES, TRUTH.len()]).normal(DType::F32)?;
        let noise = key.named("noise")?.draw(&[EXAMPLES, 1]).normal(DType::F32)?;
        let truth = constant(&[TRUTH.len(), 1], &TRUTH)?;
        let targets = (inputs.matmul(&truth)? + (noise * 0.1)?)?;
        let weights = key.named("weights")?.draw(&[TRUTH.len(), 1]).normal(DType::F32)?;
        Ok(vec![weights, inputs, targets])
    })?;
    let mut arrays = compile(&client, &problem)?.execute_arrays(&[])?.into_iter();
    let mut next = || arrays.next().ok_or("too few results");
    let (mut weights, inputs, targets) = (next()?, next()?, next()?);

    // One step. The weights are argument 0, and their buffer is donated to result 0.
    let matrix = |rows, columns| Argument::new(TensorType::new(DType::F32, &[rows, columns]));
    let arguments =
        [matrix(TRUTH.len(), 1).donated_to(0), matrix(EXAMPLES, TRUTH.len()), matrix(EXAMPLES, 1)];
    let step = Program::trace("step", &arguments, |arguments| {
        let [weights, inputs, targets] = arguments.as_slice() else { unreachable!() };
        let (loss, gradients) = value_and_grad(&[weights], |weights| {
            (inputs.matmul(&weights[0])? - targets)?.square()?.mean_all()
        })?;
        Ok(vec![(weights - (&gradients[0] * 0.05)?)?, loss])
    })?;
    println!("One step, as passed to the compiler:\n\n{}", step.to_text());

    let step = compile(&client, &step)?;
    println!("step      loss");
    for i in 0..=STEPS {
        let results = step.execute_arrays(&[&weights, &inputs, &targets])?;
        let [new_weights, loss] = <[Array; 2]>::try_from(results).map_err(|_| "two results")?;
        weights = new_weights;
        if i % 10 == 0 {
            let loss = loss.to_host()?.values::<f32>()?[0];
            // On a log scale: ten characters per factor of ten above the noise.
            let length = (10.0 * (loss / 0.005).log10()).max(0.0) as usize;
            println!("{i:4}  {loss:8.5}  {}", "█".repeat(length));
        }
    }

    println!("\nweight  truth    found");
    for (i, (truth, found)) in TRUTH.iter().zip(weights.to_host()?.values::<f32>()?).enumerate() {
        println!("{i:6}  {truth:5.1}  {found:7.3}");
    }
    Ok(())
}

/// A client with one CPU device.
fn cpu() -> Result<Client> {
    let located = find_or_install(Platform::Cpu, None, &Store::default_location()?)?;
    let options = ClientOptions::new().cpu_device_count(1);
    Ok(Client::new(Plugin::load(&located.path)?, &options)?)
}

fn compile(client: &Client, program: &Program) -> Result<LoadedExecutable> {
    Ok(client.compile(&program.to_text(), &CompileOptions::new(program.devices()))?)
}
