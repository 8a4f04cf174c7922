//! Activation functions by Hugging Face's names.

use super::{kernels, upcast};
use crate::scope::Scope;
use fullshard_graph::{Error, Policy, Result, Tensor, barrier, custom_vjp, remat};

/// An activation function.
#[derive(Clone, Copy)]
pub struct Activation {
    /// The name in a config, such as `gelu_new`.
    pub name: &'static str,
    /// The class of its module, such as `NewGELUActivation`.
    pub class: &'static str,
    function: fn(&Tensor) -> Result<Tensor>,
    /// Its derivative, where there is a shorter form than by autodiff.
    derivative: Option<fn(&Tensor) -> Result<Tensor>>,
}

const fn activation(
    name: &'static str,
    class: &'static str,
    function: fn(&Tensor) -> Result<Tensor>,
) -> Activation {
    Activation { name, class, function, derivative: None }
}

const fn gelu_tanh(name: &'static str, class: &'static str) -> Activation {
    let derivative = Some(Tensor::gelu_tanh_grad as fn(&Tensor) -> Result<Tensor>);
    Activation { derivative, ..activation(name, class, Tensor::gelu_tanh) }
}

/// The activation of GPT-2.
pub const GELU_NEW: Activation = gelu_tanh("gelu_new", "NewGELUActivation");

/// The activation of Llama.
pub const SILU: Activation = activation("silu", "SiLUActivation", Tensor::silu);

/// All activation functions.
pub const ALL: &[Activation] = &[
    activation("gelu", "GELUActivation", Tensor::gelu),
    activation("gelu_10", "ClippedGELUActivation", |x| x.gelu()?.clamp(-10.0, 10.0)),
    gelu_tanh("gelu_accurate", "AccurateGELUActivation"),
    gelu_tanh("gelu_fast", "FastGELUActivation"),
    GELU_NEW,
    activation("gelu_python", "GELUActivation", Tensor::gelu),
    gelu_tanh("gelu_python_tanh", "GELUTanh"),
    gelu_tanh("gelu_pytorch_tanh", "GELUTanh"),
    activation("hardswish", "Hardswish", |x| x * ((x + 3.0)?.clamp(0.0, 6.0)? / 6.0)?),
    activation("leaky_relu", "LeakyReLU", |x| x.maximum(&(x * 0.01)?)),
    activation("linear", "LinearActivation", |x| Ok(x.clone())),
    activation("mish", "MishActivation", |x| x * softplus(x)?.tanh()?),
    activation("quick_gelu", "QuickGELUActivation", Tensor::gelu_sigmoid),
    activation("relu", "ReLU", Tensor::relu),
    activation("relu2", "ReLUSquaredActivation", |x| x.relu()?.square()),
    activation("relu6", "ReLU6", |x| x.clamp(0.0, 6.0)),
    activation("sigmoid", "Sigmoid", Tensor::sigmoid),
    SILU,
    activation("swish", "SiLU", Tensor::silu),
    activation("tanh", "Tanh", Tensor::tanh),
];

impl Activation {
    /// Its value at each element, computed in `f32` at least.
    pub fn of(self, x: &Tensor) -> Result<Tensor> {
        (self.function)(&upcast(x)?)?.convert(x.dtype())
    }

    /// Applies it as a module with a name. It is recomputed in the backward pass where that is
    /// faster than reading saved `f32` values from memory.
    pub fn apply(self, scope: &Scope<'_>, name: &str, x: &Tensor) -> Result<Tensor> {
        scope.leaf(name, self.class)?;
        match self.derivative {
            Some(_) if self.has_kernel(scope, x) => kernels::tiles::gelu_tanh(x),
            Some(derivative) if scope.lowering().recomputed_activations => {
                self.with_derivative(derivative, x, scope.is_recomputed())
            }
            _ => self.saved_or_recomputed(scope, &[x], |x| self.of(&x[0])),
        }
    }

    /// Whether it is a kernel for inputs like `x`: GELU by tanh is.
    pub(super) fn has_kernel(self, scope: &Scope<'_>, x: &Tensor) -> bool {
        self.derivative.is_some() && kernels::are_used(scope, x)
    }

    /// Applies it by a kernel to the sum of a product and a bias, given both and the sum.
    pub(super) fn apply_biased(
        self,
        scope: &Scope<'_>,
        name: &str,
        inputs: &[Tensor],
    ) -> Result<Tensor> {
        scope.leaf(name, self.class)?;
        let [product, bias, sum] = inputs else { return Err(self.missing_result()) };
        kernels::tiles::biased_gelu_tanh(product, bias, sum)
    }

    /// Its value, with a gradient that saves nothing but `x`. If the surrounding code is
    /// recomputed, value and derivative are computed in one pass.
    fn with_derivative(
        self,
        derivative: fn(&Tensor) -> Result<Tensor>,
        x: &Tensor,
        fused: bool,
    ) -> Result<Tensor> {
        let mut results = custom_vjp(
            &[x],
            |x| Ok(vec![self.of(&x[0])?]),
            |x| Ok((vec![self.of(&x[0])?], x)),
            |x, gradients| {
                let [x] = &x[..] else { return Err(self.missing_result()) };
                // Else a barrier keeps the compiler from saving subexpressions of the forward pass.
                let x = if fused { x } else { &barrier(&[x])?[0] };
                let gradient = (upcast(&gradients[0])? * derivative(&upcast(x)?)?)?;
                Ok(vec![gradient.convert(x.dtype())?])
            },
        )?;
        results.pop().ok_or_else(|| self.missing_result())
    }

    /// Applies it as a module with a name to a gate and multiplies `x` by the result; recomputed in
    /// the backward pass as in [`Activation::apply`].
    pub fn gated(self, scope: &Scope<'_>, name: &str, gate: &Tensor, x: &Tensor) -> Result<Tensor> {
        scope.leaf(name, self.class)?;
        self.saved_or_recomputed(scope, &[gate, x], |inputs| self.of(&inputs[0])? * &inputs[1])
    }

    fn saved_or_recomputed(
        self,
        scope: &Scope<'_>,
        inputs: &[&Tensor],
        function: impl Fn(&[Tensor]) -> Result<Tensor>,
    ) -> Result<Tensor> {
        if !scope.lowering().recomputed_activations {
            let inputs: Vec<Tensor> = inputs.iter().map(|&input| input.clone()).collect();
            return function(&inputs);
        }
        let mut results = remat(Policy::Nothing, inputs, |inputs| Ok(vec![function(&inputs)?]))?;
        results.pop().ok_or_else(|| self.missing_result())
    }

    fn missing_result(self) -> Error {
        Error::new(self.name, "an activation has one result")
    }
}

impl std::fmt::Debug for Activation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name)
    }
}

impl PartialEq for Activation {
    fn eq(&self, other: &Activation) -> bool {
        self.name == other.name
    }
}

/// `log(1 + exp(x))`, without overflow.
fn softplus(x: &Tensor) -> Result<Tensor> {
    x.relu()? + (x.abs()? * -1.0)?.exp()?.log1p()?
}
