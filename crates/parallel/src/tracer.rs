//! Tracing a model with sharded parameters: entering a unit all-gathers its parameters, leaving it
//! reshards them.

mod dropout;
mod unrolled;

use crate::layout::ShardedParam;
use crate::placement::{PlacedUnit, Placement};
use fullshard_graph::{DType, Error, Key, Result, Tensor, constant, iota, remat, scan, transient};
use fullshard_models::{
    Activations, Annotations, Body, ContextAxis, Layer, LayerBody, LoweringOptions, Parameter,
    Place, TensorParallel, Tracer,
};
use std::cell::{Cell, RefCell};
use std::collections::HashMap;

/// Traces a placed model, inside a manual region over the axes of the placement.
pub struct Sharded<'a> {
    placement: &'a Placement,
    dropout: Option<Key>,
    /// This device's shards, by parameter name.
    shards: RefCell<HashMap<String, Tensor>>,
    /// The parameters that are currently unsharded.
    full_params: RefCell<HashMap<String, Tensor>>,
    /// Whether the surrounding computation is rematerialized anyway.
    in_remat: Cell<bool>,
    tensor: Option<TensorParallel>,
    annotations: Option<Annotations>,
    context: Option<ContextAxis>,
}

impl<'a> Sharded<'a> {
    /// A tracer for the shards of all parameters. With a dropout key the model is being trained.
    pub fn new(placement: &'a Placement, shards: &[Tensor], dropout: Option<Key>) -> Sharded<'a> {
        let sharded = Sharded {
            placement,
            dropout,
            shards: RefCell::default(),
            full_params: RefCell::default(),
            in_remat: Cell::new(false),
            tensor: placement.tensor.as_ref().and_then(|tensor| tensor.manual(placement)),
            annotations: placement.tensor.as_ref().and_then(|it| it.annotations(&placement.mesh)),
            context: (placement.context_shards() > 1).then(|| {
                let group = placement.group(&placement.context_axes);
                let method = placement.options.context_method;
                ContextAxis::new(group, method, placement.sample_group())
            }),
        };
        sharded.shards.replace(named(&placement.parameters, shards));
        sharded
    }

    /// A tracer for parameters that are unsharded already.
    pub fn with_full_params(
        placement: &'a Placement,
        full_params: &[Tensor],
        dropout: Option<Key>,
    ) -> Sharded<'a> {
        let sharded = Sharded::new(placement, &[], dropout);
        sharded.full_params.replace(named(&placement.parameters, full_params));
        sharded
    }

    /// All parameters, all-gathered unit by unit.
    pub fn gather_all(placement: &Placement, shards: &[Tensor]) -> Result<Vec<Tensor>> {
        let sharded = Sharded::new(placement, shards, None);
        for unit in &placement.units {
            sharded.unshard(unit, false)?;
        }
        let full_params = sharded.full_params.borrow();
        let get = |param: &ShardedParam| find(&full_params, &param.name);
        placement.parameters.iter().map(get).collect()
    }

    /// The shards of full gradients of the trained parameters, reduced over devices unit by unit.
    pub fn reduce_all(placement: &Placement, gradients: &[Tensor]) -> Result<Vec<Tensor>> {
        let trained = placement.trained();
        let mut shards = gradients.to_vec();
        for unit in &placement.units {
            let positions = unit.parameters.iter().filter_map(|i| trained.binary_search(i).ok());
            let positions: Vec<usize> = positions.collect();
            let parameters: Vec<&ShardedParam> =
                positions.iter().map(|&i| &placement.parameters[trained[i]]).collect();
            let full: Vec<&Tensor> = positions.iter().map(|&i| &gradients[i]).collect();
            let reduced = placement.comm.reduce(&parameters, &full)?;
            for (i, shard) in positions.into_iter().zip(reduced) {
                shards[i] = shard;
            }
        }
        Ok(shards)
    }

    /// All-gathers those of a unit's parameters that are sharded; if they are resharded, the backward
    /// pass does so again.
    fn unshard(&self, unit: &PlacedUnit, reshard: bool) -> Result<()> {
        self.gather(&unit.parameters, reshard)
    }

    /// All-gathers parameters of a unit, by position, unless they are full already.
    fn gather(&self, parameters: &[usize], reshard: bool) -> Result<()> {
        let owned = parameters.iter().map(|&i| &self.placement.parameters[i]);
        let is_sharded =
            |param: &&ShardedParam| !self.full_params.borrow().contains_key(&param.name);
        let (frozen, trained): (Vec<&ShardedParam>, Vec<&ShardedParam>) =
            owned.filter(is_sharded).partition(|param| param.frozen);
        for parameters in [trained, frozen].into_iter().filter(|list| !list.is_empty()) {
            let shards = parameters.iter().map(|param| find(&self.shards.borrow(), &param.name));
            let shards = shards.collect::<Result<Vec<_>>>()?;
            let gather = |shards: &[Tensor]| {
                let shards: Vec<&Tensor> = shards.iter().collect();
                self.placement.comm.gather(&parameters, &shards)
            };
            let full_params = match reshard && self.placement.devices() > 1 {
                true => transient(&shards.iter().collect::<Vec<_>>(), |shards| gather(&shards))?,
                false => gather(&shards)?,
            };
            let named = parameters.iter().map(|param| param.name.clone()).zip(full_params);
            self.full_params.borrow_mut().extend(named);
        }
        Ok(())
    }

    fn reshard(&self, unit: &PlacedUnit) {
        let mut full_params = self.full_params.borrow_mut();
        for &i in &unit.parameters {
            full_params.remove(&self.placement.parameters[i].name);
        }
    }

    fn is_unsharded(&self, unit: &PlacedUnit) -> bool {
        let full_params = self.full_params.borrow();
        let is_full = |&i: &usize| full_params.contains_key(&self.placement.parameters[i].name);
        unit.parameters.iter().all(is_full)
    }

    /// One layer under the remat policy. Units that are not resharded are unsharded before it.
    fn layer(
        &self,
        place: &Place,
        carries: Vec<Tensor>,
        body: LayerBody<'_>,
    ) -> Result<Vec<Tensor>> {
        let policy = self.placement.remat.policy().filter(|_| !self.in_remat.get());
        let Some(policy) = policy else { return body(place, carries) };
        let path = place.module_path();
        let mut gathered = Vec::new();
        for unit in self.placement.units_under(&path) {
            if !unit.reshard && !self.is_unsharded(unit) {
                self.unshard(unit, false)?;
                gathered.push(unit);
            }
        }
        self.in_remat.set(true);
        let carries: Vec<&Tensor> = carries.iter().collect();
        let results = remat(policy, &carries, |carries| body(place, carries));
        self.in_remat.set(false);
        gathered.into_iter().for_each(|unit| self.reshard(unit));
        results
    }

    /// Layers as a scan over their stacked parameters.
    fn scanned(
        &self,
        place: &Place,
        count: usize,
        carries: Vec<Tensor>,
        body: LayerBody<'_>,
    ) -> Result<Vec<Tensor>> {
        let path = format!("{}.*", place.path);
        let outside = (self.shards.borrow().clone(), self.full_params.borrow().clone());
        for unit in self.placement.units_under(&path) {
            let mut before = unit.parameters.clone();
            before.retain(|&i| self.placement.is_gathered_before(i));
            self.gather(&before, false)?;
        }
        let (names, stacked) = self.stacked(&path)?;
        let index = iota(DType::I32, &[count], 0)?;
        let inputs: Vec<&Tensor> = [&index].into_iter().chain(&stacked).collect();
        let carries: Vec<&Tensor> = carries.iter().collect();
        let outer = self.full_params.borrow().clone();
        let step = |carries: Vec<Tensor>, slices: &[Tensor]| {
            let place = place.layer(Layer::Traced(slices[0].clone()));
            Ok((self.layer(&place, carries, body)?, Vec::new()))
        };
        let scan = scan(&carries, &inputs);
        let results = match self.placement.gathers_layers_ahead() {
            false => scan.run(|carries, slices| {
                self.set_slices(&names, &slices[1..]);
                step(carries, &slices)
            })?,
            true => {
                let units = self.placement.units_under(&path);
                let units: Vec<&PlacedUnit> =
                    units.filter(|unit| !self.is_unsharded(unit)).collect();
                let owned = || units.iter().flat_map(|unit| &unit.parameters);
                let prepare = |slices: Vec<Tensor>| {
                    self.set_slices(&names, &slices[1..]);
                    units.iter().try_for_each(|unit| self.unshard(unit, false))?;
                    let full_params = self.full_params.replace(outer.clone());
                    let names = owned().map(|&i| &self.placement.parameters[i].name);
                    names.map(|name| find(&full_params, name)).collect()
                };
                scan.run_prepared(prepare, |carries, prepared, slices| {
                    self.set_slices(&names, &slices[1..]);
                    let owned = owned().map(|&i| self.placement.parameters[i].name.clone());
                    self.full_params.borrow_mut().extend(owned.zip(prepared));
                    step(carries, &slices)
                })?
            }
        };
        self.shards.replace(outside.0);
        self.full_params.replace(outside.1);
        Ok(results.carries)
    }

    /// The stacked parameters of the layers at a path, sharded or full, by name.
    fn stacked(&self, path: &str) -> Result<(Vec<String>, Vec<Tensor>)> {
        let inside = |param: &&ShardedParam| param.name.starts_with(&format!("{path}."));
        let (shards, full_params) = (self.shards.borrow(), self.full_params.borrow());
        let names: Vec<String> =
            self.placement.parameters.iter().filter(inside).map(|s| s.name.clone()).collect();
        let get = |name: &String| match full_params.get(name) {
            Some(full) => Ok(full.clone()),
            None => find(&shards, name),
        };
        let tensors = names.iter().map(get).collect::<Result<Vec<_>>>()?;
        Ok((names, tensors))
    }

    /// Sets the parameters of the layer being traced to slices of stacked ones.
    fn set_slices(&self, names: &[String], slices: &[Tensor]) {
        for (name, slice) in names.iter().zip(slices) {
            let mut full_params = self.full_params.borrow_mut();
            match full_params.contains_key(name) {
                true => full_params.insert(name.clone(), slice.clone()),
                false => self.shards.borrow_mut().insert(name.clone(), slice.clone()),
            };
        }
    }
}

impl Tracer for Sharded<'_> {
    fn module(&self, place: &Place, body: Body<'_>) -> Result<Vec<Tensor>> {
        let unit = self.placement.unit(&place.module_path());
        match unit.filter(|unit| !self.is_unsharded(unit)) {
            Some(unit) => {
                self.unshard(unit, unit.reshard && !self.in_remat.get())?;
                let results = body();
                self.reshard(unit);
                results
            }
            None => body(),
        }
    }

    fn layers(
        &self,
        place: &Place,
        count: usize,
        carries: Vec<Tensor>,
        body: LayerBody<'_>,
    ) -> Result<Vec<Tensor>> {
        // A layer is a module as well, and may be a unit.
        let module = |place: &Place, carries: Vec<Tensor>| {
            self.module(place, Box::new(|| body(place, carries)))
        };
        match self.placement.stacks.contains(&place.path) {
            true => self.scanned(place, count, carries, &module),
            false => self.unrolled(place, count, carries, &module),
        }
    }

    fn parameter(&self, place: &Place, parameter: &Parameter) -> Result<Tensor> {
        let name = place.name(parameter.name);
        let owner = self.placement.aliases.get(&name).unwrap_or(&name);
        find(&self.full_params.borrow(), owner)
    }

    fn dropout(
        &self,
        place: &Place,
        name: &str,
        x: &Tensor,
        of: Activations,
        probability: f64,
    ) -> Result<Tensor> {
        let dropped_out = |key| self.dropped_out(&key, x, of, probability);
        self.dropout_key(place, name)?.map_or(Ok(x.clone()), dropped_out)
    }

    fn dropout_key(&self, place: &Place, name: &str) -> Result<Option<Key>> {
        let Some(key) = &self.dropout else { return Ok(None) };
        let key = key.named(&format!("{}.{name}", place.path))?;
        let key = match &place.layer {
            Some(Layer::Known(index)) => key.fold(&constant(&[], &[*index as i32])?)?,
            Some(Layer::Traced(index)) => key.fold(index)?,
            None => key,
        };
        Ok(Some(key))
    }

    fn context(&self) -> Option<&ContextAxis> {
        self.context.as_ref()
    }

    fn tensor_parallel(&self) -> Option<&TensorParallel> {
        self.tensor.as_ref()
    }

    fn annotations(&self) -> Option<&Annotations> {
        self.annotations.as_ref()
    }

    fn is_training(&self) -> bool {
        self.dropout.is_some()
    }

    fn compute_dtype(&self) -> DType {
        self.placement.comm.compute
    }

    fn buffer_dtype(&self) -> DType {
        self.placement.options.config.settings.buffer_dtype.unwrap_or(self.compute_dtype())
    }

    fn lowering(&self) -> LoweringOptions {
        self.placement.options.lowering
    }

    fn is_recomputed(&self) -> bool {
        self.in_remat.get()
    }

    fn uses_fp8(&self) -> bool {
        self.placement.options.config.settings.fp8
    }
}

fn named(parameters: &[ShardedParam], tensors: &[Tensor]) -> HashMap<String, Tensor> {
    parameters.iter().map(|param| param.name.clone()).zip(tensors.iter().cloned()).collect()
}

fn find(tensors: &HashMap<String, Tensor>, name: &str) -> Result<Tensor> {
    let missing = || Error::new("parameter", format!("`{name}` is not available here"));
    tensors.get(name).cloned().ok_or_else(missing)
}
