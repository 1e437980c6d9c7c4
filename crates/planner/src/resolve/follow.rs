//! Selection of the functions whose return address may be replaced at entry.
//!
//! A function is not followed if the top of the stack at its first instruction is not a return
//! address, or if some code inspects or saves that return address.
//!
//! Followed are functions for which the call frame information says that the return address is
//! on top of the stack at their first instruction, and that do not jump back to it. Functions
//! that return twice or inspect their return address are known by name.

use std::sync::Arc;

use capriole_event::{At, Place, Probe};
use capriole_insn::ExitKind;

use super::{Body, Leaving, ResolveError, Site, resolve};
use capriole_object::{Object, Objects};

/// Reason why a function's return address is not replaced.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
pub enum NotFollowed {
    /// The site is a copy inlined into another function.
    #[error("a copy that was inlined into another function has no return address of its own")]
    Inlined,
    /// The top of the stack at the site is not a return address.
    #[error("it is not entered by a call, so it has no return address on the stack")]
    NotCalled,
    /// The function cannot be identified.
    #[error(
        "it has no name, and in a static program without symbols it could be setjmp or vfork, which return more than once"
    )]
    Nameless,
    /// The function returns more than once, or keeps its return address for later.
    #[error(
        "it returns more than once to the same place, or keeps its return address for later, as setjmp, vfork and getcontext do"
    )]
    Again,
    /// The function inspects its return address.
    #[error("it finds its caller by its return address, as dlsym and dlopen do")]
    InspectsReturnAddress,
    /// The function is part of the exception unwinder.
    #[error("it is part of the unwinder, which reads its own return address")]
    Unwinds,
    /// The function is part of the dynamic loader.
    #[error("it is part of the dynamic loader, whose functions are not all entered by a call")]
    Loader,
    /// The function is written in Go.
    #[error("Go moves stacks, and reads the return addresses on them")]
    Go,
    /// The function's first instruction is the target of jumps that are not certain to be tail
    /// calls, or code before it falls through to it.
    #[error(
        "its first instruction is also reached by a jump or from the code before it, so the return address may be elsewhere"
    )]
    Loop,
}

/// Functions that return twice or keep their return address; names without leading underscores.
const AGAIN: &[&str] = &[
    "setjmp",
    "sigsetjmp",
    "savectx",
    "vfork",
    "libc_vfork",
    "getcontext",
    "setcontext",
    "swapcontext",
    "makecontext",
    "clone",
    "clone2",
    "clone3",
    "clone_internal",
    "syscall",
    "longjmp_chk",
    "longjmp",
    "siglongjmp",
    "libc_longjmp",
    "libc_siglongjmp",
    "libc_start_main",
    "libc_start_main_impl",
    "libc_start_call_main",
    "morestack",
    "coro_transfer",
];
/// Functions at whose entry the top of the stack is not a return address.
const NOT_CALLED: &[&str] = &["_start", "__restore", "__restore_rt", "__start_context"];
/// Functions that inspect their return address; names without leading underscores.
const ASKS: &[&str] = &[
    "dlopen",
    "dlmopen",
    "dlsym",
    "dlvsym",
    "libc_dlopen_mode",
    "libc_dlsym",
    "libc_dlvsym",
    "mcount",
    "fentry",
    "tls_get_addr",
    "tls_get_addr_slow",
    "tlsdesc_static",
    "tlsdesc_dynamic",
    "cyg_profile_func_enter",
    "cyg_profile_func_exit",
    "builtin_return_address",
    "gnu_mcount_nc",
    "caml_c_call",
];
/// Prefixes of the names of such functions.
const ASKING: &[&str] = &[
    "_dl_", "__dl_", "__dls", "dlopen_", "dlsym_", "dlmopen_", "dlvsym_",
];

/// Finds the functions of an event at a return. Each is given as the site of its entry with the
/// kind of exit, and the reason if the function cannot be followed.
///
/// # Errors
/// As [`resolve`].
pub fn followed(
    objects: &Objects,
    probe: &Probe,
) -> Result<Vec<(Site, Option<NotFollowed>)>, ResolveError> {
    let entries = Probe {
        at: At::Entry,
        ..probe.clone()
    };
    let sites = resolve(objects, &entries)?;
    if let (Some(entry), Place::FileOffset(offset)) = (sites.first(), &probe.place)
        && entry.offset != 0
    {
        return Err(ResolveError::NotAnEntry {
            offset: *offset,
            object: entry.object.path().to_owned(),
        });
    }
    let alone = objects.all().filter(|object| !object.is_part()).count() == 1;
    let with_way = |site: Site| {
        let refused = can_follow(&site, alone).err();
        let leaving = Some(Leaving {
            function: site.address,
            way: Ok(ExitKind::Return),
            condition: None,
        });
        (Site { leaving, ..site }, refused)
    };
    Ok(sites.into_iter().map(with_way).collect())
}

/// Checks that a function may be followed; `alone` is true if the program consists of one file.
fn can_follow(site: &Site, alone: bool) -> Result<(), NotFollowed> {
    if matches!(site.body, Body::Inlined { .. }) {
        return Err(NotFollowed::Inlined);
    }
    let object: &Arc<Object> = &site.object;
    let file = object.file();
    if file.is_go() {
        return Err(NotFollowed::Go);
    }
    if is_loader(object) {
        return Err(NotFollowed::Loader);
    }
    if site.link_address == file.entry() {
        return Err(NotFollowed::NotCalled);
    }
    let symbols = object.symbols().ok();
    let function = symbols.and_then(|s| s.function_starting_at(site.link_address));
    let (Some(symbols), Some(function)) = (symbols, function) else {
        return Err(NotFollowed::NotCalled);
    };
    if symbols.is_split_off(function) {
        return Err(NotFollowed::NotCalled);
    }
    match file.is_called(site.link_address) {
        Some(false) => return Err(NotFollowed::NotCalled),
        Some(true) => {}
        // Without call frame information, at least a symbol must mark the code as a function.
        None if !function.is_named() => return Err(NotFollowed::NotCalled),
        None => {}
    }
    let mut named = false;
    for name in symbols.names(function) {
        named = true;
        by_name(name.linkage)?;
    }
    if !named && alone {
        return Err(NotFollowed::Nameless);
    }
    Ok(())
}

fn by_name(name: &str) -> Result<(), NotFollowed> {
    let plain = name.strip_prefix("__GI_").unwrap_or(name);
    let bare = plain.trim_start_matches('_');
    if plain.starts_with("_Unwind_") || plain.starts_with("uw_") {
        return Err(NotFollowed::Unwinds);
    }
    if NOT_CALLED.contains(&plain) {
        return Err(NotFollowed::NotCalled);
    }
    if AGAIN.contains(&bare) {
        return Err(NotFollowed::Again);
    }
    if ASKS.contains(&bare) || ASKING.iter().any(|start| plain.starts_with(start)) {
        return Err(NotFollowed::InspectsReturnAddress);
    }
    Ok(())
}

/// True if an object is a dynamic loader and nothing else.
fn is_loader(object: &Object) -> bool {
    let name = object.file().soname().unwrap_or_default();
    name.starts_with("ld-linux") || name.starts_with("ld.so")
}
