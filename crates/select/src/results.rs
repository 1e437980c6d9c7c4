//! Results that a compiler has left out because no caller uses them, found by the code of the callers.

use capriole_dwarf::{Debug, Returned};
use capriole_insn::{Branch, Code, References, ResultUse, result_use};
use capriole_object::symbols::{Binding, Function, SymbolTable};
use capriole_object::{ObjectFile, ObjectKind};
use iced_x86::Register;

/// Maximum length of a chain of callers that pass on the result.
const MOST_CALLERS: usize = 8;

/// The uses of results in an object.
pub struct Results<'a> {
    file: &'a ObjectFile,
    symbols: &'a SymbolTable,
    references: References,
}

impl<'a> Results<'a> {
    /// Finds the references to the functions of an object that only its own code calls. `None` if they
    /// cannot be found.
    pub fn of(file: &'a ObjectFile) -> Option<Results<'a>> {
        let symbols = file.symbols().ok()?;
        let is_own = |function: &&Function| is_local(symbols, function);
        let own = symbols.functions().iter().filter(is_own);
        let starts: Vec<u64> = own.map(|function| function.extent.start).collect();
        let mut references = References::default();
        for text in file.text().ok()? {
            let code = Code::new(&text.bytes, text.address);
            references.add(&code, &starts, file.kind() == ObjectKind::FixedProgram);
        }
        references.add_pointers(file.code_pointers().ok()?);
        Some(Results {
            file,
            symbols,
            references,
        })
    }

    /// True if all callers of the function that begins at a link address are known, and none of them
    /// uses its result in `register`.
    pub fn is_unused(&self, debug: &Debug<'_>, function: u64, register: Register) -> bool {
        let mut chain = vec![function];
        self.is_unused_by(debug, &mut chain, register)
    }

    /// Like [`Results::is_unused`], for the last function of a chain of callers.
    fn is_unused_by(&self, debug: &Debug<'_>, chain: &mut Vec<u64>, register: Register) -> bool {
        let Some(&function) = chain.last() else {
            return false;
        };
        match self.references.of(function) {
            None | Some([]) => false,
            Some(branches) => {
                let unused = |branch| self.leaves(debug, chain, branch, register);
                branches.iter().all(unused)
            }
        }
    }

    /// True if a caller leaves the result unused.
    fn leaves(
        &self,
        debug: &Debug<'_>,
        chain: &mut Vec<u64>,
        branch: &Branch,
        register: Register,
    ) -> bool {
        let Some(caller) = self.symbols.function_at(branch.behind - 1) else {
            return false;
        };
        let used = match branch.is_call {
            true => self.code_of(caller).map_or(ResultUse::Read, |code| {
                result_use(&code, caller.extent, branch.behind, register)
            }),
            false => ResultUse::Returned,
        };
        match used {
            ResultUse::Read => false,
            ResultUse::Unread => true,
            ResultUse::Returned => {
                let start = caller.extent.start;
                if chain.contains(&start) || returns_nothing(debug, start) {
                    return true;
                }
                let is_known = is_local(self.symbols, caller) && chain.len() < MOST_CALLERS;
                if !is_known || self.symbols.is_split_off(caller) {
                    return false;
                }
                chain.push(start);
                let unused = self.is_unused_by(debug, chain, register);
                chain.pop();
                unused
            }
        }
    }

    fn code_of(&self, function: &Function) -> Option<Code<'a>> {
        let texts = self.file.text().ok()?;
        let start = function.extent.start;
        let text = texts
            .iter()
            .find(|text| (text.address..text.end()).contains(&start))?;
        Some(Code::new(&text.bytes, text.address))
    }
}

/// True if all names of a function are local.
fn is_local(symbols: &SymbolTable, function: &Function) -> bool {
    let mut names = symbols.names(function);
    names.all(|name| name.binding == Binding::Local)
}

/// True if debug information declares that the function at a link address has no result.
fn returns_nothing(debug: &Debug<'_>, function: u64) -> bool {
    let returned = debug
        .site(function, None)
        .and_then(|place| debug.returned(&place));
    matches!(returned, Ok(Returned::Nothing))
}
