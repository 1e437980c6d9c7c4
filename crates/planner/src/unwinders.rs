//! Probes where unwinders look up return addresses, and refusal of other code that reads those: runtimes, some of
//! which compile code.
//!
//! For an exception, a backtrace or a cancelled thread, the unwinder finds for each return
//! address on the stack the function that it leads into, by the tables of the object that it
//! lies in. A stub lies in no object. libgcc looks up the entry of an address in one place,
//! `_Unwind_Find_FDE`; a probe of Capriole's own there answers for the stubs (returns.S). It is
//! written before any return address is replaced and reverted when none is replaced any more.
//! For a signal that has interrupted a detour, the same probe leads the unwinder to the site (frames.c).
//! (`__register_frame` would do as well, but takes a lock which a stopped thread may hold.)
//!
//! The probe gives both the lookup and the unwinder's own copy (in its context) the original
//! address. Table entries of our own for the stubs would be enough to find the way, but libgcc
//! identifies frames by the stack pointers of their callees: the frames counted when an
//! exception is thrown must be the same as those found later, even if the probes are removed in
//! between. The probe is removed when no return address is replaced any more and no unwinder
//! holds a copy that it has not looked up.

use crate::guards::is_one_write;
use crate::planner::{Planner, is_c_library};
use crate::resolve::Site;
use capriole_insn::Extent;
use capriole_object::{Frame, Object, Objects};
use capriole_patch::attach::Probe;
use capriole_proc::process::Process;
use std::sync::Arc;
use thiserror::Error;

/// Reason why no return address may be replaced in a process.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum NoReturns {
    /// The program has a shadow stack.
    #[error("the program runs with a shadow stack, which detects each replaced return address")]
    ShadowStack,
    /// An object in the process moves stacks or reads return addresses.
    #[error("{object} {what}")]
    Runtime {
        /// The file.
        object: String,
        /// Description of its behaviour.
        what: &'static str,
    },
    /// Code that was not found handles exceptions.
    #[error(
        "{0} handles exceptions by its own code, which has no symbols to find it by and cannot follow replaced return addresses"
    )]
    Hidden(String),
    /// An object has an unwinder other than libgcc's.
    #[error("{0} has another unwinder than GCC's, which cannot follow replaced return addresses")]
    Other(String),
    /// The unwinder's lookup function cannot be probed.
    #[error(
        "{object}: _Unwind_Find_FDE, by which exceptions look up return addresses, cannot be probed: {reason}"
    )]
    Unprobed {
        /// The file.
        object: String,
        /// The reason.
        reason: String,
    },
}

/// Symbols that identify a runtime that reads the return addresses on its stacks, or moves
/// those stacks, with a description of what the runtime does.
const RUNTIMES: &[(&str, &str)] = &[
    ("caml_main", OCAML),
    ("caml_startup", OCAML),
    ("caml_start_program", OCAML),
    ("JNI_CreateJavaVM", JAVA),
    ("coreclr_initialize", DOTNET),
    ("_ZN2v87Isolate10GetCurrentEv", V8),
    ("_ZN2v87Isolate13TryGetCurrentEv", V8),
    ("_ZN2v88internal7Isolate3NewEv", V8),
    ("PyInit__greenlet", GREENLET),
    ("init_greenlet", GREENLET),
    ("_PyGreenlet_API", GREENLET),
    ("call_into_lisp", SBCL),
    ("mono_jit_init", MONO),
    ("rpy_stacklet_new", "copies pieces of stacks (stacklets)"),
    ("stacklet_new", "copies pieces of stacks (stacklets)"),
];
const OCAML: &str = "is OCaml, which finds values on its stacks by return addresses";
const JAVA: &str =
    "is a Java virtual machine, which finds values on its stacks by return addresses";
const DOTNET: &str = "is .NET, which finds values on its stacks by return addresses";
const SBCL: &str = "is SBCL, which finds the code in use by return addresses";
const MONO: &str = "is Mono, which finds values on its stacks by return addresses";
const V8: &str = "is V8, which finds values on its stacks by return addresses";
const GREENLET: &str = "is greenlet, which copies pieces of stacks away and back";
const RUBY: &str = "is Ruby with continuations, which copies stacks";
/// Parts of file names that identify such runtimes where symbols are missing.
const FILES: &[(&str, &str)] = &[
    ("_greenlet", GREENLET),
    ("libjvm.so", JAVA),
    ("libcoreclr.so", DOTNET),
    ("libclrjit.so", DOTNET),
    ("continuation.so", RUBY),
    (
        "libpypy",
        "is PyPy, which copies pieces of stacks (stacklets)",
    ),
];
/// Symbols that an object imports if another object unwinds for it.
const IMPORTS: [&str; 6] = [
    "_Unwind_Resume",
    "_Unwind_RaiseException",
    "_Unwind_Backtrace",
    "__gxx_personality_v0",
    "__gcc_personality_v0",
    "__cxa_begin_catch",
];
/// The function where libgcc looks up addresses.
const FIND: &str = "_Unwind_Find_FDE";
/// A symbol that unwinders define.
const RAISE: &str = "_Unwind_RaiseException";
/// Symbols that LLVM's unwinder defines.
const LLVM: [&str; 3] = ["__unw_step", "unw_step", "__unw_getcontext"];

/// Plans the probes that answer unwinders where no return address is replaced: in all objects where that is
/// possible, as they only have to answer for signals that interrupt detours.
#[must_use]
pub fn find_some(objects: &Objects, planner: &Planner) -> Vec<Probe> {
    // The answer returns from the function for its own, which a shadow stack would detect.
    if planner.has_shadow_stack() {
        return Vec::new();
    }
    let some = |object: &Arc<Object>| {
        let defines = object.file().defines(FIND);
        let extent = defines.then(|| entry(object).ok()?)??;
        let is_mapped = object.is_mapped(extent.start);
        is_mapped.then(|| probe(object, extent, planner).ok())?
    };
    objects.all().filter_map(some).collect()
}

/// Plans the probes that answer unwinders, in all objects of a process.
///
/// # Errors
/// The reason why no return address may be replaced there.
pub fn find(objects: &Objects, planner: &Planner) -> Result<Vec<Probe>, NoReturns> {
    if planner.has_shadow_stack() {
        return Err(NoReturns::ShadowStack);
    }
    let mut probes = Vec::new();
    for object in objects.all() {
        refuse_runtime(object)?;
        match entry(object)? {
            Some(extent) if !object.is_mapped(extent.start) => {}
            Some(extent) => probes.push(probe(object, extent, planner)?),
            None if is_hidden(object) => return Err(NoReturns::Hidden(object.name())),
            None => {}
        }
    }
    Ok(probes)
}

fn refuse_runtime(object: &Object) -> Result<(), NoReturns> {
    let what = match object.file().is_go() {
        true => Some("is Go, which moves its stacks and looks at the return addresses on them"),
        false => runtime(object),
    };
    match what {
        Some(what) => Err(NoReturns::Runtime {
            object: object.name(),
            what,
        }),
        None => Ok(()),
    }
}

/// Returns the description of the runtime that an object is.
fn runtime(object: &Object) -> Option<&'static str> {
    let name = object.name();
    if let Some((_, what)) = FILES.iter().find(|(part, _)| name.contains(part)) {
        return Some(what);
    }
    let symbols = object.symbols().ok()?;
    let known = |(symbol, _): &&(&str, &str)| symbols.has_linkage_name(symbol);
    RUNTIMES.iter().find(known).map(|(_, what)| *what)
}

/// A runtime that compiles code while the program runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Compiler {
    /// V8: node, Electron, Chromium.
    V8,
    /// A Java virtual machine.
    Java,
    /// .NET.
    DotNet,
}

/// Option of Java's virtual machine with which all code that it compiles keeps frame pointers.
pub const JAVA_FRAME_POINTERS: &str = "-XX:+PreserveFramePointer";

impl Compiler {
    /// Returns the runtime that compiles code, if one of these objects of a process is one.
    pub fn of<'a>(objects: impl IntoIterator<Item = &'a Arc<Object>>) -> Option<Compiler> {
        let mut objects = objects.into_iter();
        objects.find_map(|object| match runtime(object)? {
            V8 => Some(Compiler::V8),
            JAVA => Some(Compiler::Java),
            DOTNET => Some(Compiler::DotNet),
            _ => None,
        })
    }

    /// True if, at each call that its compiled code makes in this process, rbp points to the frame of the function
    /// that calls: the caller's rbp, and above it the return address. V8 always does so, and Java with an option.
    #[must_use]
    pub fn keeps_frame_pointers(self, process: &Process) -> bool {
        match self {
            Compiler::V8 => true,
            Compiler::Java => {
                let words = process.command_line();
                let mut options = words.split(|byte| *byte == 0);
                options.any(|word| word == JAVA_FRAME_POINTERS.as_bytes())
            }
            Compiler::DotNet => false,
        }
    }

    /// False if calls in its code are made in other ways than by call instructions as well, so that a return address
    /// need not follow one: Java's interpreter pushes the address of the code that goes on.
    #[must_use]
    pub fn uses_call_instructions(self) -> bool {
        self != Compiler::Java
    }
}

/// Returns the run-time extent of the function in which an object's unwinder looks up
/// addresses; `None` if it has no unwinder.
fn entry(object: &Arc<Object>) -> Result<Option<Extent>, NoReturns> {
    let Ok(symbols) = object.symbols() else {
        return Ok(None);
    };
    let has = |name: &str| !symbols.exact(name).is_empty();
    let found = symbols.exact(FIND);
    let other = || NoReturns::Other(object.name());
    match found.first() {
        Some(_) if LLVM.into_iter().any(has) => Err(other()),
        Some(found) => Ok(Some(object.run_time_extent(found.function.extent))),
        None if has(RAISE) => Err(other()),
        None => Ok(None),
    }
}

/// True if an object has exception handlers, but imports no symbol of another object's
/// unwinder.
fn is_hidden(object: &Object) -> bool {
    let file = object.file();
    let handles = file
        .frames()
        .is_ok_and(|frames| frames.iter().any(Frame::has_handlers));
    // glibc imports none of these: it loads libgcc when it needs it.
    handles && !is_c_library(object) && !file.imports(IMPORTS).contains(&true)
}

fn probe(object: &Arc<Object>, extent: Extent, planner: &Planner) -> Result<Probe, NoReturns> {
    let unprobed = |reason: String| NoReturns::Unprobed {
        object: object.name(),
        reason,
    };
    let nowhere = || unprobed("its code is not in the file".to_owned());
    let site = Site::of_function(object, extent).ok_or_else(nowhere)?;
    let plan = planner
        .plan(&site)
        .map_err(|refused| unprobed(refused.to_string()))?;
    if !is_one_write(&plan) {
        return Err(unprobed("not by one write".to_owned()));
    }
    Ok(Probe {
        stand_in: false,
        ..Probe::new(plan, object.range())
    })
}
