//! No circle of modules: the first modules can be understood, and changed, without the later ones.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

#[test]
fn modules_use_one_another_in_one_direction() {
    let mut uses: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    add(
        &Path::new(env!("CARGO_MANIFEST_DIR")).join("src"),
        None,
        &mut uses,
    );
    let modules: BTreeSet<String> = uses.keys().cloned().collect();
    assert!(modules.contains("attach") && uses["recover"].contains("detach"));
    for used in uses.values_mut() {
        used.retain(|module| modules.contains(module));
    }
    // Take modules away that use none of the rest, until none is left.
    while !uses.is_empty() {
        let lowest: Vec<String> = uses
            .iter()
            .filter(|(_, used)| used.is_empty())
            .map(|(module, _)| module.clone())
            .collect();
        assert!(!lowest.is_empty(), "these use one another: {uses:#?}");
        for module in lowest {
            uses.remove(&module);
            for used in uses.values_mut() {
                used.remove(&module);
            }
        }
    }
}

/// Adds the names behind `crate::` in the sources of a directory to the uses of their top module.
fn add(directory: &Path, top: Option<&str>, uses: &mut BTreeMap<String, BTreeSet<String>>) {
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
        let module = top.unwrap_or(&name);
        if path.is_dir() {
            add(&path, Some(module), uses);
        } else if !["lib", "layers"].contains(&module) {
            let used = uses.entry(module.to_owned()).or_default();
            let source = fs::read_to_string(&path).unwrap();
            let lines = source.lines().map(str::trim_start);
            for line in lines.filter(|line| !line.starts_with("//")) {
                for behind in line.split("crate::").skip(1) {
                    let end = behind.find(|c: char| !c.is_alphanumeric() && c != '_');
                    let other = &behind[..end.unwrap_or(behind.len())];
                    if other != module {
                        used.insert(other.to_owned());
                    }
                }
            }
        }
    }
}
