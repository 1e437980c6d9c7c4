//! Parts of the resident, compiled as a library of this process.

use capriole_ring::numbers::ALL;
use std::ffi::{CStr, CString};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A library that is loaded, and stays.
#[derive(Debug)]
pub struct Compiled(*mut libc::c_void);

impl Compiled {
    /// Compiles a file of this directory's parent, which includes sources of the resident, and loads it.
    /// Each time that makes a library of its own, with variables of its own.
    pub fn load(source: &str) -> Compiled {
        static MADE: AtomicUsize = AtomicUsize::new(0);
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        let here = Path::new(env!("CARGO_MANIFEST_DIR"));
        let directory = Path::new(env!("CARGO_TARGET_TMPDIR"));
        let directory = directory.join(format!("{source}-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&directory).expect("a directory");
        let numbers = ALL.iter().copied().flatten();
        let numbers = numbers.map(|(name, value)| format!("#define {name} {value:#x}\n"));
        std::fs::write(directory.join("numbers.h"), numbers.collect::<String>()).expect("written");
        let library = directory.join("compiled.so");
        let built = Command::new(std::env::var("CC").unwrap_or_else(|_| "cc".into()))
            .args("-shared -fPIC -std=gnu11 -O1 -fno-inline -fno-strict-aliasing".split(' '))
            .arg("-I")
            .arg(&directory)
            .arg("-I")
            .arg(here.join("../resident/src"))
            .arg(here.join("tests/it").join(source))
            .arg("-o")
            .arg(&library)
            .status()
            .expect("there is a compiler");
        assert!(built.success());
        let name = CString::new(library.as_os_str().as_bytes()).expect("no NUL");
        // SAFETY: a library that runs no code when it is loaded.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        assert!(!handle.is_null(), "{}", library.display());
        let _ = std::fs::remove_dir_all(&directory);
        Compiled(handle)
    }

    /// Returns the address of a function.
    pub fn symbol(&self, name: &CStr) -> *mut libc::c_void {
        // SAFETY: the handle is that of a loaded library.
        let found = unsafe { libc::dlsym(self.0, name.as_ptr()) };
        assert!(!found.is_null());
        found
    }
}
