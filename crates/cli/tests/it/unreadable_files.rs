//! Programs and libraries on file systems that root may not read: the reason is the file system.

use crate::programs::{Compiler, build, copied};
use crate::target::{Running, capriole, is_root, told};
use crate::traces::text;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The only user that may read the file system.
const USER: u32 = 54321;

/// A directory where a server mounts its files. Unmounted when dropped.
struct Mounted(PathBuf);

impl Drop for Mounted {
    fn drop(&mut self) {
        // The server has unmounted it unless the test has failed.
        let _ = Command::new("umount").arg("-lq").arg(&self.0).output();
    }
}

#[test]
fn files_of_another_users_server_are_told_from_missing_rights() {
    let library = ["-shared", "-fPIC"];
    let (Some(server), Some(program), Some(library)) = (
        build(Compiler::Gcc, "fuse.c", &[]),
        build(Compiler::Gcc, "in_memory.c", &[]),
        build(Compiler::Gcc, "probes_plugin.c", &library),
    ) else {
        return;
    };
    if !is_root("mount") {
        return;
    }
    if !Path::new("/dev/fuse").exists() {
        println!("skipped: there is no /dev/fuse");
        return;
    }
    // Other users may not enter the directory of the tests.
    let directory = tempfile::tempdir_in("/tmp").expect("a directory");
    let place = directory.path();
    let mode = PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(place, mode).expect("a directory");
    let readable = place.join("readable");
    copied(&program, &readable);
    let place = place.join("served");
    std::fs::create_dir(&place).expect("a directory");
    let _mounted = Mounted(place.clone());
    let user = USER.to_string();
    let words = [text(&place), &user, text(&program), text(&library)];
    let server = Running::start(&server, &words);
    let (program, library) = (place.join("0"), place.join("1"));
    let reason = format!(
        "cannot be read: it is on a file system (fuse.test) that only user {USER} may read: run capriole as that user"
    );
    let mut command = Command::new(&program);
    command.arg(&library).arg("plugin").uid(USER).gid(USER);
    let running = Running::of(&mut command);
    let said = told(&capriole(&[
        "check",
        ":main",
        "-p",
        &running.pid.to_string(),
    ]));
    let expected = format!("its program {} {reason}", program.display());
    assert!(said.contains(&expected), "{said}");
    running.finish();
    let mut command = Command::new(&readable);
    command.arg(&library).arg("plugin").uid(USER).gid(USER);
    let running = Running::of(command.env("LD_PRELOAD", &library));
    let event = format!("{}:plugged", library.display());
    let said = told(&capriole(&[
        "check",
        &event,
        "-p",
        &running.pid.to_string(),
    ]));
    let expected = format!("{}: {reason}", library.display());
    assert!(said.contains(&expected), "{said}");
    running.finish();
    server.finish();
}
