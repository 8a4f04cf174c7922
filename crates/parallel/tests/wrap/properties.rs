//! Properties of every tree.

use crate::NORMAL;
use fullshard_models::Module;
use fullshard_parallel::{Unit, WrapPlan, WrapPolicy, units};
use proptest::prelude::*;
use proptest::sample::Index;

const CLASSES: [&str; 5] = ["Block", "Linear", "ModuleList", "MultiheadAttention", "Mlp"];

fn leaf() -> impl Strategy<Value = Module> {
    (0..CLASSES.len(), prop::collection::vec(0_usize..40, 0..3)).prop_map(|(class, sizes)| {
        let names = ["weight", "bias", "scale"];
        let mut module = Module::new(CLASSES[class]);
        for (name, size) in names.into_iter().zip(sizes) {
            module = module.parameter(name, &[size], NORMAL);
        }
        module
    })
}

fn tree() -> impl Strategy<Value = Module> {
    let tree = leaf().prop_recursive(4, 40, 4, |inner| {
        (leaf(), prop::collection::vec(inner, 0..4)).prop_map(|(module, children)| {
            let add = |module: Module, (i, child): (usize, Module)| {
                // Names with common prefixes, to catch paths compared as plain text.
                module.child(&"x".repeat(i + 1), child)
            };
            children.into_iter().enumerate().fold(module, add)
        })
    });
    let ties = prop::collection::vec((any::<Index>(), any::<Index>()), 0..4);
    (tree, ties).prop_map(|(mut tree, ties)| {
        for (from, to) in ties {
            tie(&mut tree, &from, &to);
        }
        tree
    })
}

/// Ties one parameter to another, if neither is tied yet.
fn tie(tree: &mut Module, from: &Index, to: &Index) {
    let named = tree.named_parameters();
    if named.is_empty() {
        return;
    }
    let (from, _) = from.get(&named);
    let (to, target) = to.get(&named);
    let is_tied = |name: &String| {
        let mut ties = named.iter().filter_map(|(n, p)| p.tied_to.as_ref().map(|t| (n, t)));
        ties.any(|(user, owner)| user == name || (owner == name && name == from))
    };
    if from == to || is_tied(from) || is_tied(to) {
        return;
    }
    let (from, to, dims) = (from.clone(), to.clone(), target.dims.clone());
    set_tie(tree, &from, &to, &dims);
}

fn set_tie(module: &mut Module, rest: &str, to: &str, dims: &[usize]) {
    match rest.split_once('.') {
        Some((name, rest)) => {
            let child = module.children.iter_mut().find(|(child, _)| child == name).unwrap();
            set_tie(&mut child.1, rest, to, dims);
        }
        None => {
            let parameter = module.parameters.iter_mut().find(|p| p.name == rest).unwrap();
            parameter.tied_to = Some(to.to_owned());
            parameter.dims = dims.to_vec();
        }
    }
}

/// A policy that is valid for the tree.
fn policy(tree: &Module, by_size: bool, min_size: usize) -> WrapPolicy {
    if by_size {
        return WrapPolicy::MinSize(min_size);
    }
    let mut inside = Vec::new();
    tree.visit(&mut |path, module| {
        if !path.is_empty() && ["Block", "Linear"].contains(&module.class) {
            inside.push(module.class.to_owned());
        }
    });
    inside.dedup();
    WrapPolicy::Classes(inside)
}

fn is_in(path: &str, name: &str) -> bool {
    path.is_empty() || name.starts_with(&format!("{path}."))
}

proptest! {
    #[test]
    fn every_tensor_is_owned_once_around_its_users(
        tree in tree(), by_size: bool, min_size in 0_usize..120,
    ) {
        let units = units(&tree, &policy(&tree, by_size, min_size)).unwrap();
        let named = tree.named_parameters();
        for (name, parameter) in &named {
            let owners: Vec<&Unit> =
                units.iter().filter(|unit| unit.parameters.contains(name)).collect();
            if parameter.tied_to.is_some() {
                prop_assert!(owners.is_empty());
                continue;
            }
            prop_assert_eq!(owners.len(), 1);
            let ties = named.iter().filter(|(_, p)| p.tied_to.as_ref() == Some(name));
            let users: Vec<&String> =
                std::iter::once(name).chain(ties.map(|(user, _)| user)).collect();
            let around = |unit: &Unit| users.iter().all(|user| is_in(&unit.path, user));
            prop_assert!(around(owners[0]));
            let innermost = units.iter().filter(|unit| around(unit)).map(|unit| unit.path.len());
            prop_assert_eq!(Some(owners[0].path.len()), innermost.max());
        }
        let listed: usize = units.iter().map(|unit| unit.parameters.len()).sum();
        prop_assert_eq!(listed, named.iter().filter(|(_, p)| p.tied_to.is_none()).count());
        prop_assert_eq!(units.iter().map(|unit| unit.elements).sum::<usize>(), tree.elements());
    }

    #[test]
    fn units_are_in_the_order_of_the_tree(
        tree in tree(), by_size: bool, min_size in 0_usize..120,
    ) {
        let units = units(&tree, &policy(&tree, by_size, min_size)).unwrap();
        let mut order = Vec::new();
        tree.visit(&mut |path, module| order.push((path.to_owned(), module.class)));
        let mut rest = order.into_iter();
        prop_assert_eq!(&units[0].path, "");
        for unit in &units {
            prop_assert!(rest.any(|(path, class)| path == unit.path && class == unit.class));
        }
    }

    #[test]
    fn units_by_size_are_large_enough_and_not_lists(tree in tree(), min_size in 0_usize..120) {
        let units = units(&tree, &WrapPolicy::MinSize(min_size)).unwrap();
        for unit in &units[1..] {
            prop_assert!(unit.elements >= min_size);
            prop_assert_ne!(unit.class, "ModuleList");
        }
    }

    #[test]
    fn a_plan_accounts_for_every_unit_and_tie(tree in tree(), min_size in 0_usize..120) {
        let plan = WrapPlan::new(&tree, &WrapPolicy::MinSize(min_size), &[]).unwrap();
        let grouped: usize = plan.groups().iter().map(|group| group.units.len()).sum();
        prop_assert_eq!(grouped, plan.units.len());
        let ties = tree.named_parameters().iter().filter(|(_, p)| p.tied_to.is_some()).count();
        prop_assert_eq!(plan.tied.len(), ties);
    }
}
