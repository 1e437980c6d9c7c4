//! `frida`: Frida's Interceptor calls a handler compiled from C before each call of the function.
//! The handler counts its calls; otherwise they could not be verified.

use std::path::{Path, PathBuf};

use super::build::{PROGRAM, installed, plain};
use super::{Program, Session, Tool, put};

pub(super) struct Frida;

const DRIVER: &str = include_str!("../../peers/frida.py");
/// Script that runs the driver with the Python `$2`. Frida leaves a daemon and files behind, some
/// of them sockets, whose paths must not be long.
const SCRIPT: &str = r#"
export TMPDIR=/run
"$2" -I "$1/driver.py" "$1/$3"
"#;

impl Tool for Frida {
    fn build(&self, files: &Path) -> Result<(), String> {
        installed("unshare")?;
        put(files, "driver.py", DRIVER)?;
        plain(files).map(drop)
    }

    fn start(&self, files: &Path) -> Result<Session, String> {
        let python = python()?;
        let arguments = [python.as_os_str(), PROGRAM.as_ref()];
        Session::of(Program::secluded(SCRIPT, files, &arguments)?)
    }

    fn end(&self, session: Session, _: &Path) -> Result<u64, String> {
        let said = session.program.end()?;
        let count = said.trim().parse();
        count.map_err(|_| format!("Frida's script said {said:?} for the number of calls"))
    }
}

/// Finds the Python that has Frida: the one of `make bench-peers`, in the directory that
/// `CAPRIOLE_PEERS` names or beside the build, or else the one in `PATH`.
fn python() -> Result<PathBuf, String> {
    let named = std::env::var_os("CAPRIOLE_PEERS").map(PathBuf::from);
    let executable = std::env::current_exe().ok();
    let build = executable
        .as_deref()
        .and_then(Path::parent)
        .and_then(Path::parent);
    let beside = build.map(|build| build.join("peers"));
    let mut places = named.into_iter().chain(beside);
    let found = places.find_map(|place| {
        let python = place.join("frida/bin/python3");
        python.is_file().then_some(python)
    });
    if let Some(python) = found {
        return Ok(python);
    }
    installed("python3")?;
    Ok(PathBuf::from("python3"))
}
