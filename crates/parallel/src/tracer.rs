//! Tracing a model whose parameters are cut over devices: entering a unit gathers its parameters,
//! leaving it lets them go.

use crate::layout::Stored;
use crate::placement::{PlacedUnit, Placement};
use crate::remat::Remat;
use fullshard_graph::{
    DType, Error, Group, Key, Policy, Result, Tensor, barrier, custom_vjp, iota, remat, scan,
    transient,
};
use fullshard_models::layers::checkpoint;
use fullshard_models::{Body, Layer, LayerBody, LoweringOptions, Parameter, Place, Tracer};
use std::cell::{Cell, RefCell};
use std::collections::HashMap;

/// Traces a placed model, inside a manual region over the placement's axis.
pub struct Sharded<'a> {
    placement: &'a Placement,
    group: Group,
    dropout: Option<Key>,
    /// This device's parts, by the name they are stored under.
    parts: RefCell<HashMap<String, Tensor>>,
    /// The parameters that are whole at the moment.
    wholes: RefCell<HashMap<String, Tensor>>,
    /// Whether everything around is computed again anyway.
    in_remat: Cell<bool>,
}

impl<'a> Sharded<'a> {
    /// A tracer for the parts of all parameters. With a key the model is being trained.
    pub fn new(
        placement: &'a Placement,
        group: &Group,
        parts: &[Tensor],
        dropout: Option<Key>,
    ) -> Sharded<'a> {
        let sharded = Sharded {
            placement,
            group: group.clone(),
            dropout,
            parts: RefCell::default(),
            wholes: RefCell::default(),
            in_remat: Cell::new(false),
        };
        sharded.parts.replace(named(&placement.parameters, parts));
        sharded
    }

    /// A tracer for parameters that are whole already.
    pub fn with_wholes(
        placement: &'a Placement,
        group: &Group,
        wholes: &[Tensor],
        dropout: Option<Key>,
    ) -> Sharded<'a> {
        let sharded = Sharded::new(placement, group, &[], dropout);
        sharded.wholes.replace(named(&placement.parameters, wholes));
        sharded
    }

    /// All parameters gathered, unit by unit.
    pub fn gather_all(
        placement: &Placement,
        group: &Group,
        parts: &[Tensor],
    ) -> Result<Vec<Tensor>> {
        let sharded = Sharded::new(placement, group, parts, None);
        for unit in &placement.units {
            sharded.make_whole(unit, false)?;
        }
        let wholes = sharded.wholes.borrow();
        let get = |stored: &Stored| find(&wholes, &stored.name);
        placement.parameters.iter().map(get).collect()
    }

    /// The parts of whole gradients of the trained parameters, summed over devices unit by unit.
    pub fn reduce_all(
        placement: &Placement,
        group: &Group,
        gradients: &[Tensor],
    ) -> Result<Vec<Tensor>> {
        let trained = placement.trained();
        let mut parts = gradients.to_vec();
        for unit in &placement.units {
            let places = unit.parameters.iter().filter_map(|i| trained.binary_search(i).ok());
            let places: Vec<usize> = places.collect();
            let parameters: Vec<&Stored> =
                places.iter().map(|&place| &placement.parameters[trained[place]]).collect();
            let whole: Vec<&Tensor> = places.iter().map(|&place| &gradients[place]).collect();
            let reduced = placement.wire.reduce(group, &parameters, &whole)?;
            for (place, part) in places.into_iter().zip(reduced) {
                parts[place] = part;
            }
        }
        Ok(parts)
    }

    /// Gathers what a unit owns; if it is let go, the way back gathers it again.
    fn make_whole(&self, unit: &PlacedUnit, let_go: bool) -> Result<()> {
        let owned = unit.parameters.iter().map(|&i| &self.placement.parameters[i]);
        let (frozen, trained): (Vec<&Stored>, Vec<&Stored>) =
            owned.partition(|stored| stored.frozen);
        for parameters in [trained, frozen].into_iter().filter(|list| !list.is_empty()) {
            let parts = parameters.iter().map(|stored| find(&self.parts.borrow(), &stored.name));
            let parts = parts.collect::<Result<Vec<_>>>()?;
            let gather = |parts: &[Tensor]| {
                let parts: Vec<&Tensor> = parts.iter().collect();
                self.placement.wire.gather(&self.group, &parameters, &parts)
            };
            let wholes = match let_go && self.group.size() > 1 {
                true => transient(&parts.iter().collect::<Vec<_>>(), |parts| gather(&parts))?,
                false => gather(&parts)?,
            };
            let named = parameters.iter().map(|stored| stored.name.clone()).zip(wholes);
            self.wholes.borrow_mut().extend(named);
        }
        Ok(())
    }

    fn forget(&self, unit: &PlacedUnit) {
        let mut wholes = self.wholes.borrow_mut();
        for &i in &unit.parameters {
            wholes.remove(&self.placement.parameters[i].name);
        }
    }

    fn is_whole(&self, unit: &PlacedUnit) -> bool {
        let wholes = self.wholes.borrow();
        let is_whole = |&i: &usize| wholes.contains_key(&self.placement.parameters[i].name);
        unit.parameters.iter().all(is_whole)
    }

    /// One layer: what it remembers, and what has to be done before it.
    fn layer(
        &self,
        place: &Place,
        carries: Vec<Tensor>,
        body: LayerBody<'_>,
    ) -> Result<Vec<Tensor>> {
        let policy = match self.placement.remat {
            _ if self.in_remat.get() => return body(place, carries),
            Remat::None => return body(place, carries),
            Remat::Dots => Policy::Named(checkpoint::ALL.iter().map(|&name| name.into()).collect()),
            Remat::Full => Policy::Nothing,
        };
        let path = place.module_path();
        let mut gathered = Vec::new();
        for unit in self.placement.units_under(&path) {
            if !unit.reshard && !self.is_whole(unit) {
                self.make_whole(unit, false)?;
                gathered.push(unit);
            }
        }
        self.in_remat.set(true);
        let carries: Vec<&Tensor> = carries.iter().collect();
        let results = remat(policy, &carries, |carries| body(place, carries));
        self.in_remat.set(false);
        gathered.into_iter().for_each(|unit| self.forget(unit));
        results
    }

    /// Layers written out, each behind the barriers that the configuration asks for.
    fn written_out(
        &self,
        place: &Place,
        count: usize,
        carries: Vec<Tensor>,
        body: LayerBody<'_>,
    ) -> Result<Vec<Tensor>> {
        (0..count).try_fold(carries, |carries, index| {
            let place = place.layer(Layer::Known(index));
            let carries = self.behind_barriers(&place, carries)?;
            match self.placement.keeps_last_layer() && index + 1 == count {
                true => body(&place, carries),
                false => self.layer(&place, carries, body),
            }
        })
    }

    /// Ties the parts of a layer's parameters to what goes into it, so that the compiler gathers
    /// them no earlier; on the way back, their gradients to what comes out. Frozen parts have no
    /// gradients to tie.
    fn behind_barriers(&self, place: &Place, carries: Vec<Tensor>) -> Result<Vec<Tensor>> {
        let settings = &self.placement.options.config.settings;
        let forward = settings.optimization_barrier_in_forward;
        let backward = settings.optimization_barrier_in_backward;
        if self.group.size() == 1 || !(forward || backward) {
            return Ok(carries);
        }
        let path = place.module_path();
        let units = self.placement.units_under(&path).flat_map(|unit| &unit.parameters);
        let stored = units.map(|&i| &self.placement.parameters[i]);
        let stored = stored.filter(|stored| self.parts.borrow().contains_key(&stored.name));
        let (frozen, trained): (Vec<&Stored>, Vec<&Stored>) =
            stored.partition(|stored| stored.frozen);
        let parts = |list: &[&Stored]| {
            let parts = list.iter().map(|stored| find(&self.parts.borrow(), &stored.name));
            parts.collect::<Result<Vec<_>>>()
        };
        let pass = |on: bool, values: Vec<Tensor>| match on {
            true => barrier(&values.iter().collect::<Vec<_>>()),
            false => Ok(values),
        };
        if !frozen.is_empty() {
            let mut tied = parts(&frozen)?;
            for carry in &carries {
                tied.push(carry.stop_gradient()?);
            }
            self.put(&frozen, pass(forward, tied)?);
        }
        let mut tied = carries.clone();
        tied.extend(parts(&trained)?);
        let mut tied = custom_vjp(
            &tied.iter().collect::<Vec<_>>(),
            |values| pass(forward, values),
            |values| Ok((pass(forward, values)?, Vec::new())),
            |_, gradients| pass(backward, gradients),
        )?;
        self.put(&trained, tied.split_off(carries.len()));
        Ok(tied)
    }

    /// Replaces parts by others.
    fn put(&self, parameters: &[&Stored], parts: Vec<Tensor>) {
        let names = parameters.iter().map(|stored| stored.name.clone());
        self.parts.borrow_mut().extend(names.zip(parts));
    }

    /// Layers as a loop over their stacked parameters.
    fn looped(
        &self,
        place: &Place,
        count: usize,
        carries: Vec<Tensor>,
        body: LayerBody<'_>,
    ) -> Result<Vec<Tensor>> {
        let path = format!("{}.*", place.path);
        let (names, stacked) = self.stacked(&path)?;
        let index = iota(DType::I32, &[count], 0)?;
        let inputs: Vec<&Tensor> = [&index].into_iter().chain(&stacked).collect();
        let carries: Vec<&Tensor> = carries.iter().collect();
        let outer = (self.parts.borrow().clone(), self.wholes.borrow().clone());
        let step = |carries: Vec<Tensor>, slices: &[Tensor]| {
            let place = place.layer(Layer::Traced(slices[0].clone()));
            Ok((self.layer(&place, carries, body)?, Vec::new()))
        };
        let results = match self.placement.gathers_ahead() {
            false => scan(&carries, &inputs).run(|carries, slices| {
                self.install(&names, &slices[1..]);
                step(carries, &slices)
            })?,
            true => {
                let units: Vec<&PlacedUnit> =
                    self.placement.units_under(&path).filter(|unit| !self.is_whole(unit)).collect();
                let owned = || units.iter().flat_map(|unit| &unit.parameters);
                let prepare = |slices: Vec<Tensor>| {
                    self.install(&names, &slices[1..]);
                    units.iter().try_for_each(|unit| self.make_whole(unit, false))?;
                    let wholes = self.wholes.replace(outer.1.clone());
                    owned().map(|&i| find(&wholes, &self.placement.parameters[i].name)).collect()
                };
                scan(&carries, &inputs).run_prepared(prepare, |carries, prepared, slices| {
                    self.install(&names, &slices[1..]);
                    let owned = owned().map(|&i| self.placement.parameters[i].name.clone());
                    self.wholes.borrow_mut().extend(owned.zip(prepared));
                    step(carries, &slices)
                })?
            }
        };
        self.parts.replace(outer.0);
        self.wholes.replace(outer.1);
        Ok(results.carries)
    }

    /// The stacked parameters of the layers at a path, parts or whole, by name.
    fn stacked(&self, path: &str) -> Result<(Vec<String>, Vec<Tensor>)> {
        let inside = |stored: &&Stored| stored.name.starts_with(&format!("{path}."));
        let (parts, wholes) = (self.parts.borrow(), self.wholes.borrow());
        let names: Vec<String> =
            self.placement.parameters.iter().filter(inside).map(|s| s.name.clone()).collect();
        let get = |name: &String| match wholes.get(name) {
            Some(whole) => Ok(whole.clone()),
            None => find(&parts, name),
        };
        let tensors = names.iter().map(get).collect::<Result<Vec<_>>>()?;
        Ok((names, tensors))
    }

    /// Makes the slices of stacked parameters those of the layer being traced.
    fn install(&self, names: &[String], slices: &[Tensor]) {
        for (name, slice) in names.iter().zip(slices) {
            let mut wholes = self.wholes.borrow_mut();
            match wholes.contains_key(name) {
                true => wholes.insert(name.clone(), slice.clone()),
                false => self.parts.borrow_mut().insert(name.clone(), slice.clone()),
            };
        }
    }
}

impl Tracer for Sharded<'_> {
    fn module(&self, place: &Place, body: Body<'_>) -> Result<Vec<Tensor>> {
        let unit = self.placement.unit(&place.module_path());
        match unit.filter(|unit| !self.is_whole(unit)) {
            Some(unit) => {
                self.make_whole(unit, unit.reshard && !self.in_remat.get())?;
                let results = body();
                self.forget(unit);
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
            true => self.looped(place, count, carries, &module),
            false => self.written_out(place, count, carries, &module),
        }
    }

    fn parameter(&self, place: &Place, parameter: &Parameter) -> Result<Tensor> {
        let name = place.name(parameter.name);
        let owner = self.placement.aliases.get(&name).unwrap_or(&name);
        find(&self.wholes.borrow(), owner)
    }

    fn dropout(&self, place: &Place, name: &str, x: &Tensor, probability: f64) -> Result<Tensor> {
        let Some(key) = &self.dropout else { return Ok(x.clone()) };
        let key = key.named(&format!("{}.{name}", place.path))?;
        let key = match &place.layer {
            Some(Layer::Known(index)) => {
                key.fold(&fullshard_graph::constant(&[], &[*index as i32])?)?
            }
            Some(Layer::Traced(index)) => key.fold(index)?,
            None => key,
        };
        let mut dims = x.dims().to_vec();
        dims[0] *= self.group.size();
        key.draw(&dims).cut(0, &self.group)?.dropout(x, probability)
    }

    fn is_training(&self) -> bool {
        self.dropout.is_some()
    }

    fn compute_dtype(&self) -> DType {
        self.placement.wire.compute
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

fn named(parameters: &[Stored], tensors: &[Tensor]) -> HashMap<String, Tensor> {
    parameters.iter().map(|stored| stored.name.clone()).zip(tensors.iter().cloned()).collect()
}

fn find(tensors: &HashMap<String, Tensor>, name: &str) -> Result<Tensor> {
    let missing = || Error::new("parameter", format!("`{name}` is not at hand here"));
    tensors.get(name).cloned().ok_or_else(missing)
}
