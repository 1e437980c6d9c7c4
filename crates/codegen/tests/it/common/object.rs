//! A system library with everything that `choose` needs to know about it.

#![allow(dead_code)]

use capriole_insn::{Code, Extent, FunctionFlow, Hints, Targets, landing_pads};

use crate::support::elf::{Elf, find_library};

/// Everything that `choose` needs to know about one object.
pub struct Object {
    pub elf: Elf,
    pub functions: Vec<(String, Extent)>,
    /// Code without a symbol: static functions, and parts of functions.
    pub parts: Vec<Extent>,
    /// Starts of functions according to symbols and unwind tables.
    starts: Vec<u64>,
    pub targets: Targets,
    pads: Vec<u64>,
}

impl Object {
    /// Opens the system's copy of a library, as if it were mapped at `bias`.
    pub fn find(name: &str, bias: u64) -> Option<Self> {
        let elf = find_library(name).and_then(|path| Elf::open_at(&path, bias));
        if elf.is_none() {
            println!("skipped: no {name} on this system");
        }
        elf.map(Self::new)
    }

    fn new(elf: Elf) -> Self {
        let functions = elf.functions();
        let fdes = elf.fdes();
        let mut extents: Vec<Extent> = functions
            .iter()
            .map(|(_, extent)| *extent)
            .chain(fdes.iter().map(|fde| fde.extent))
            .collect();
        extents.sort_unstable();
        extents.dedup();
        let mut pads = Vec::new();
        for fde in &fdes {
            if let Some(lsda) = fde.lsda {
                let bytes = elf.rest(lsda);
                pads.extend(landing_pads(bytes, lsda, fde.extent.start).expect("a damaged LSDA"));
            }
        }
        pads.sort_unstable();
        let (bytes, address) = elf.text();
        let code = Code::new(bytes, address);
        let read = |address, len| elf.read(address, len);
        let mut targets = Targets::of(&code, &extents, &read);
        pads.iter().for_each(|&pad| targets.insert(pad));
        elf.pointers()
            .iter()
            .for_each(|&p| targets.insert_pointer(p));
        targets.set_pointers_known();
        functions
            .iter()
            .for_each(|(_, f)| targets.insert_entry(f.start));
        let parts = fdes
            .iter()
            .map(|fde| fde.extent)
            .filter(|part| {
                let next = functions.partition_point(|(_, f)| f.start < part.end);
                let near = &functions[next.saturating_sub(8)..next];
                !near.iter().any(|(_, f)| f.overlaps(part))
            })
            .collect();
        let starts = extents.iter().map(|extent| extent.start).collect();
        Self {
            functions,
            parts,
            starts,
            targets,
            pads,
            elf,
        }
    }

    pub fn code(&self) -> Code<'_> {
        let (bytes, address) = self.elf.text();
        Code::new(bytes, address)
    }

    pub fn flow(&self, extent: &Extent) -> FunctionFlow {
        let read = |address, len| self.elf.read(address, len);
        let hints = Hints {
            landing_pads: &self.pads,
            read: &read,
        };
        FunctionFlow::analyse_with(&self.code(), extent, &hints).unwrap()
    }

    pub fn padding_end(&self, extent: &Extent) -> u64 {
        let next = self.starts.partition_point(|&start| start < extent.end);
        let end = self.code().extent().end;
        self.starts.get(next).copied().unwrap_or(end).min(end)
    }
}
