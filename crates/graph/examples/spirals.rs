//! Classification of three spirals with a small network, trained data-parallel on four devices.
//!
//! The points are sharded over four devices, each of which generates its own shard of the random
//! data; the weights are replicated. In a manual region every device takes the gradient of its own
//! points, and the mean over devices is the gradient of all. The loss and the learned decision
//! regions are then drawn in the terminal (in color if it is one).
//!
//! ```sh
//! cargo run --release -p fullshard-graph --example spirals
//! ```

use fullshard_graph::{
    Argument, DType, Group, Key, Mesh, MeshExt, Program, Sharding, Tensor, TensorType, concatenate,
    constant, iota, value_and_grad, zeros,
};
use fullshard_pjrt::plugins::{Platform, Store, find_or_install};
use fullshard_pjrt::{
    Array, Client, ClientOptions, CompileOptions, HostTensor, LoadedExecutable, Plugin,
};
use std::f64::consts::TAU;
use std::io::IsTerminal;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;
type Traced<T> = fullshard_graph::Result<T>;

const DEVICES: usize = 4;
const CLASSES: usize = 3;
const TURNS: f64 = 1.5;
const POINTS: usize = 1200;
const HIDDEN: usize = 128;
const STEPS: usize = 500;
const LEARNING_RATE: f64 = 0.01;
/// The picture spans `-EDGE` to `EDGE`.
const EDGE: f32 = 1.1;
/// The weights and biases of two layers.
const PARAMETERS: [&[usize]; 4] = [&[2, HIDDEN], &[HIDDEN], &[HIDDEN, CLASSES], &[CLASSES]];

fn main() -> Result<()> {
    let client = cpu(DEVICES)?;
    let mesh = Mesh::new(&[("data", DEVICES)])?;

    let batch = run(&client, &spirals(&mesh, "training")?)?;
    let mut state = run(&client, &start(&mesh)?)?;
    let step = compile(&client, &step(&mesh)?)?;
    let mut losses = Vec::new();
    for _ in 0..STEPS {
        let arguments: Vec<&Array> = state.iter().chain(&batch).collect();
        let mut results = step.execute_arrays(&arguments)?;
        losses.push(results.pop().ok_or("no loss")?);
        state = results;
    }
    // Read at the end, so that the devices never wait for the host.
    let read = |loss: &Array| Ok(f64::from(loss.to_host()?.values::<f32>()?[0]));
    let losses = losses.iter().map(read).collect::<Result<Vec<f64>>>()?;
    println!("Loss over {STEPS} steps on {DEVICES} devices\n\n{}", curve(&losses, 64, 12));

    // A grid over the plane, and held-out points.
    let weights = &state[..PARAMETERS.len()];
    let held_out = run(&client, &spirals(&mesh, "unseen")?)?;
    let (points, truth) = (held_out[0].to_host()?, held_out[1].to_host()?.values::<i32>()?);
    let side = 68;
    let grid = HostTensor::from_values(&[side * side, 2], &grid(side))?;
    let classes = classify(&client, &mesh, weights, &grid)?;
    let mut marks = vec![None; side * side];
    for (point, class) in points.values::<f32>()?.chunks(2).zip(&truth) {
        marks[pixel(point, side)] = Some(*class);
    }
    println!("Learned decision regions\n\n{}", regions(&classes, &marks, side));

    let found = classify(&client, &mesh, weights, &points)?;
    let correct = found.iter().zip(&truth).filter(|(found, truth)| found == truth).count();
    let accuracy = 100.0 * correct as f64 / POINTS as f64;
    println!("Accuracy on {POINTS} held-out points: {accuracy:.1}% ({correct} correct)");
    Ok(())
}

/// Noisy points along spirals, and the class of each: each device generates its own.
fn spirals(mesh: &Mesh, name: &str) -> Result<Program> {
    let shardings = [mesh.sharding(&[&["data"], &[]])?, mesh.sharding(&[&["data"]])?];
    let program = Program::trace("spirals", &[], |_| {
        let key = Key::constant(0)?.named(name)?;
        mesh.manual(&["data"], &[], &shardings, |_| {
            let data = mesh.over(&["data"])?;
            let radius = key.named("radius")?.draw(&[POINTS]).shard(0, &data)?;
            // The square root spreads points along a spiral instead of crowding them at its center.
            let radius = radius.uniform(DType::F32)?.sqrt()?;
            let noise =
                key.named("noise")?.draw(&[POINTS, 2]).shard(0, &data)?.normal(DType::F32)?;
            let classes = iota(DType::I32, radius.dims(), 0)?
                .remainder(&constant(&[], &[CLASSES as i32])?)?;
            let offset = (classes.convert(DType::F32)? * (1.0 / CLASSES as f64))?;
            let angle = (((&radius * TURNS)? + offset)? * TAU)?;
            let x = (&radius * angle.cos()?)?.expand(1)?;
            let y = (&radius * angle.sin()?)?.expand(1)?;
            Ok(vec![(concatenate(&[&x, &y], 1)? + (noise * 0.03)?)?, classes])
        })
    })?;
    Ok(program.on_mesh(mesh)?.sharded_results(&shardings)?)
}

/// The initial weights, and for each the running means of its gradient and of its square.
fn start(mesh: &Mesh) -> Traced<Program> {
    let program = Program::trace("start", &[], |_| {
        let key = Key::constant(1)?;
        let weight = |(i, dims): (usize, &&[usize])| {
            // A large scale in the first layer, since the spirals are narrow.
            let scale = if i == 0 { 3.0 } else { (dims[0] as f64).powf(-0.5) };
            key.named(&format!("weight.{i}"))?.draw(dims).normal(DType::F32)? * scale
        };
        let mut state = PARAMETERS.iter().enumerate().map(weight).collect::<Traced<Vec<_>>>()?;
        for dims in PARAMETERS.iter().chain(&PARAMETERS) {
            state.push(zeros(DType::F32, dims)?);
        }
        Ok(state)
    })?;
    program.on_mesh(mesh)?.sharded_results(&state_shardings(mesh))
}

/// One training step, from the state and a batch to the next state and the loss.
fn step(mesh: &Mesh) -> Result<Program> {
    let state = state_shardings(mesh);
    let batch = [mesh.sharding(&[&["data"], &[]])?, mesh.sharding(&[&["data"]])?];
    let shardings: Vec<Sharding> = state.iter().chain(&batch).cloned().collect();
    let mut arguments: Vec<Argument> = state_dims()
        .enumerate()
        .map(|(i, dims)| Argument::new(TensorType::new(DType::F32, dims)).donated_to(i))
        .collect();
    arguments.push(Argument::new(TensorType::new(DType::F32, &[POINTS, 2])));
    arguments.push(Argument::new(TensorType::new(DType::I32, &[POINTS])));
    let arguments: Vec<Argument> = arguments
        .into_iter()
        .zip(&shardings)
        .map(|(argument, sharding)| argument.sharded(sharding))
        .collect();
    let outputs: Vec<Sharding> = state.into_iter().chain([mesh.replicated(0)]).collect();
    let program = Program::trace("step", &arguments, |inputs| {
        let inputs: Vec<(&Tensor, Sharding)> = inputs.iter().zip(shardings).collect();
        mesh.manual(&["data"], &inputs, &outputs, |inputs| {
            let (state, batch) = inputs.split_at(3 * PARAMETERS.len());
            update(state, &batch[0], &batch[1], &mesh.over(&["data"])?)
        })
    })?;
    Ok(program.on_mesh(mesh)?.sharded_results(&outputs)?)
}

/// One step on each device: the local gradient, the mean over devices, and Adam's update. The
/// decays give the first step the right size without bias correction.
fn update(
    state: &[Tensor],
    points: &Tensor,
    classes: &Tensor,
    data: &Group,
) -> Traced<Vec<Tensor>> {
    let (weights, means) = state.split_at(PARAMETERS.len());
    let (means, squares) = means.split_at(PARAMETERS.len());
    let weights: Vec<&Tensor> = weights.iter().collect();
    let (loss, gradients) = value_and_grad(&weights, |weights| {
        let log_probs = network(&weights, points)?.log_softmax(1)?;
        (log_probs.take_along(&classes.expand(1)?, 1)? * -1.0)?.mean_all()
    })?;
    let mut next = [Vec::new(), Vec::new(), Vec::new()];
    for (i, weight) in weights.iter().enumerate() {
        let gradient = data.mean(&gradients[i])?;
        let mean = ((&means[i] * 0.9)? + (&gradient * 0.1)?)?;
        let square = ((&squares[i] * 0.99)? + (gradient.square()? * 0.01)?)?;
        let direction = (&mean / (square.sqrt()? + 1e-8)?)?;
        next[0].push((*weight - (direction * LEARNING_RATE)?)?);
        next[1].push(mean);
        next[2].push(square);
    }
    Ok(next.into_iter().flatten().chain([data.mean(&loss)?]).collect())
}

/// A score for each class.
fn network(weights: &[Tensor], points: &Tensor) -> Traced<Tensor> {
    let [first, first_bias, second, second_bias] = weights else { unreachable!() };
    let hidden = (points.linear(first)? + first_bias)?.tanh()?;
    hidden.linear(second)? + second_bias
}

/// The class with the best score for each point. Here the compiler shards the computation,
/// following the sharding of the points.
fn classify(
    client: &Client,
    mesh: &Mesh,
    weights: &[Array],
    points: &HostTensor,
) -> Result<Vec<i32>> {
    let mut arguments: Vec<Argument> = PARAMETERS
        .iter()
        .map(|dims| {
            let argument = Argument::new(TensorType::new(DType::F32, dims));
            argument.sharded(&mesh.replicated(dims.len()))
        })
        .collect();
    let points_type = TensorType::new(DType::F32, points.dims());
    arguments.push(Argument::new(points_type).sharded(&mesh.sharding(&[&["data"], &[]])?));
    let program = Program::trace("classify", &arguments, |inputs| {
        let (weights, points) = inputs.split_at(PARAMETERS.len());
        let (_, best) = network(weights, &points[0])?.top_k(1)?;
        Ok(vec![best])
    })?;
    let program = program.on_mesh(mesh)?.sharded_results(&[mesh.sharding(&[&["data"], &[]])?])?;
    let loaded = compile(client, &program)?;
    let tiling = loaded.argument_type(PARAMETERS.len())?.tiling;
    let points = Array::from_host(client, points, tiling, loaded.devices())?;
    let arguments: Vec<&Array> = weights.iter().chain([&points]).collect();
    Ok(loaded.execute_arrays(&arguments)?[0].to_host()?.values::<i32>()?)
}

/// The dimensions of the state: weights, means, squares.
fn state_dims() -> impl Iterator<Item = &'static [usize]> {
    PARAMETERS.into_iter().cycle().take(3 * PARAMETERS.len())
}

/// The state is replicated.
fn state_shardings(mesh: &Mesh) -> Vec<Sharding> {
    state_dims().map(|dims| mesh.replicated(dims.len())).collect()
}

/// A curve of positive values on a log scale, in braille: two by four dots per character.
fn curve(values: &[f64], width: usize, height: usize) -> String {
    let (columns, rows) = (2 * width, 4 * height);
    let logs: Vec<f64> = values.iter().map(|value| value.max(1e-12).log10()).collect();
    let low = logs.iter().copied().fold(f64::INFINITY, f64::min);
    let high = logs.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let row = |log: f64| ((high - log) / (high - low).max(1e-9) * (rows - 1) as f64) as usize;
    let mut cells = vec![0_u32; width * height];
    for column in 0..columns {
        // Every value of this column and the first of the next, so that the curve has no gaps.
        let index = |column: usize| column * (logs.len() - 1) / columns;
        let part = &logs[index(column)..=index(column + 1)];
        let top = part.iter().map(|&log| row(log)).min().unwrap_or(0);
        let bottom = part.iter().map(|&log| row(log)).max().unwrap_or(0);
        for row in top..=bottom {
            // The order of the dots in a braille character.
            let dot = [[0, 3], [1, 4], [2, 5], [6, 7]][row % 4][column % 2];
            cells[row / 4 * width + column / 2] |= 1 << dot;
        }
    }
    let mut text = String::new();
    for (i, line) in cells.chunks(width).enumerate() {
        let log = high - (high - low) * (4 * i) as f64 / (rows - 1) as f64;
        let label = if i % 3 == 0 { format!("{:8.4}", 10_f64.powf(log)) } else { " ".repeat(8) };
        let dots: String =
            line.iter().map(|dots| char::from_u32(0x2800 + dots).unwrap_or(' ')).collect();
        text += &format!("{label} ┤{dots}\n");
    }
    let last = format!("{:>1$}", values.len(), width - 1);
    text + &format!("{} └{}\n{} 0{last}\n", " ".repeat(8), "─".repeat(width), " ".repeat(9))
}

/// The pixel centers of a picture of the plane, in rows from the top.
fn grid(side: usize) -> Vec<f32> {
    let center = |pixel: usize| (pixel as f32 + 0.5) / side as f32 * 2.0 * EDGE - EDGE;
    let pixels = (0..side).flat_map(|row| (0..side).map(move |column| (row, column)));
    pixels.flat_map(|(row, column)| [center(column), -center(row)]).collect()
}

/// The pixel of a point in the same picture.
fn pixel(point: &[f32], side: usize) -> usize {
    let coordinate = |x: f32| ((x + EDGE) / (2.0 * EDGE) * side as f32) as usize;
    coordinate(-point[1]).min(side - 1) * side + coordinate(point[0]).min(side - 1)
}

/// A picture of classes, two pixels per character: dark for the predicted class, bright where there
/// is a point. Without colors, a shade for each class.
fn regions(classes: &[i32], points: &[Option<i32>], side: usize) -> String {
    const DARK: [&str; CLASSES] = ["20;52;96", "104;44;20", "20;80;52"];
    const BRIGHT: [&str; CLASSES] = ["110;180;255", "255;160;90", "110;230;160"];
    const SHADES: [char; CLASSES] = [' ', '░', '▓'];
    let use_color = std::io::stdout().is_terminal();
    let color = |i: usize| match points[i] {
        Some(class) => BRIGHT[class as usize],
        None => DARK[classes[i] as usize],
    };
    let mut text = String::new();
    for row in (0..side).step_by(2) {
        text += "  ";
        for column in 0..side {
            let (upper, lower) = (row * side + column, (row + 1) * side + column);
            if use_color {
                text += &format!("\x1b[38;2;{};48;2;{}m▀", color(upper), color(lower));
            } else {
                text.push(SHADES[classes[upper] as usize]);
            }
        }
        text += if use_color { "\x1b[0m\n" } else { "\n" };
    }
    text
}

/// A client with virtual CPU devices.
fn cpu(devices: usize) -> Result<Client> {
    let located = find_or_install(Platform::Cpu, None, &Store::default_location()?)?;
    let options = ClientOptions::new().cpu_device_count(devices);
    Ok(Client::new(Plugin::load(&located.path)?, &options)?)
}

fn compile(client: &Client, program: &Program) -> Result<LoadedExecutable> {
    Ok(client.compile(&program.to_text(), &CompileOptions::new(program.devices()))?)
}

/// Runs a program without arguments.
fn run(client: &Client, program: &Program) -> Result<Vec<Array>> {
    Ok(compile(client, program)?.execute_arrays(&[])?)
}
