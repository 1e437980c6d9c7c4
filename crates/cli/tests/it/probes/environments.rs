//! The library in programs, and under conditions, that are not the usual ones.

mod processes {
    //! Descriptors, processes and signals of the program.
    crate::probes::parts!("probes_processes.c":
        waits,
        no_sigchld,
        sigchld_is_ignored,
        closed_descriptors,
        reused_descriptor,
        reused_descriptor_in_a_child,
        closed_streams,
        daemons,
        daemonized,
        shares_the_scheduling_group,
        helper_ends,
        helper_killed_in_a_registration,
        earlier_helper_leaves_late,
        helper_killed_while_a_handler_runs,
        helper_killed_while_a_replacement_runs,
        helper_killed_with_a_replacement,
        helper_killed_with_records,
        trap_actions_in_a_child,
        called_in_signal_handlers,
        executed,
        spawned,
        fork_in_a_handler,
        thread_ends_in_a_handler,
        own_signal_handlers,
    );
}

mod limits {
    //! Where something is scarce or forbidden.
    crate::probes::parts!("probes_limits.c":
        descriptors,
        lowered_descriptors,
        address_space,
        hard_address_space,
        no_new_privileges,
        file_size,
        chrooted,
        started_before_chroot,
        started_before_nobody,
        not_dumpable,
    );

    use crate::probes::{HELPER, command, output, program, static_program, well};
    use crate::programs::{Compiler, copied, copied_for_others};
    use crate::target::is_root;
    use capriole_testkit::files;
    use std::path::Path;

    /// Runs a part as root, which becomes another user: program, library and helper are where any user
    /// may read them.
    fn for_others(part: &str) {
        if !is_root("run programs that become other users") {
            return;
        }
        let Some(program) = static_program(Compiler::Gcc, "probes_limits.c", &[]) else {
            return;
        };
        let directory = tempfile::tempdir().expect("a directory");
        let helper = copied_for_others(Path::new(HELPER), directory.path(), 0o755);
        let copy = directory.path().join("program");
        copied(&program, &copy);
        let mut command = command(&copy, &[part]);
        command.env("CAPRIOLE_HELPER", files::text(&helper));
        println!("{}", well(&output(&mut command)));
    }

    #[test]
    fn processes() {
        for_others("processes");
    }

    /// In PID namespaces, of which /proc is or is not.
    #[test]
    fn namespaces() {
        if !is_root("make namespaces") {
            return;
        }
        let Some(program) = program("probes_limits.c") else {
            return;
        };
        let ways: [(&str, &[&str]); 3] = [
            ("other_proc", &["--pid", "--fork"]),
            ("own_proc", &["--pid", "--fork", "--mount-proc"]),
            (
                "no_proc",
                &[
                    "--mount",
                    "sh",
                    "-c",
                    "mount -t tmpfs none /proc && exec \"$@\"",
                    "sh",
                ],
            ),
        ];
        for (part, options) in ways {
            let mut command = std::process::Command::new("unshare");
            command.args(options).arg(&program).arg(part);
            command.env("CAPRIOLE_HELPER", HELPER);
            println!("{}", well(&output(&mut command)));
        }
    }

    #[test]
    fn nobody() {
        for_others("nobody");
    }

    #[test]
    fn not_dumpable_any_more() {
        for_others("not_dumpable_any_more");
    }
}

mod linked {
    //! Programs that are linked in other ways, or written by other standards.

    use crate::probes::{program_by, run, static_program};
    use crate::programs::Compiler;

    const SOURCE: &str = "probes_basic.c";

    fn with_archive(compiler: Compiler, flags: &[&str]) {
        if let Some(program) = static_program(compiler, SOURCE, flags) {
            println!("{}", run(&program, &[]));
        }
    }

    fn with_library(compiler: Compiler, flags: &[&str]) {
        if let Some(program) = program_by(compiler, SOURCE, flags) {
            println!("{}", run(&program, &[]));
        }
    }

    #[test]
    fn archive() {
        with_archive(Compiler::Gcc, &[]);
    }

    #[test]
    fn no_pie() {
        with_library(Compiler::Gcc, &["-no-pie", "-fno-pie"]);
    }

    #[test]
    fn statically() {
        with_archive(Compiler::Gcc, &["-static", "-no-pie", "-fno-pie"]);
    }

    #[test]
    fn statically_pie() {
        with_archive(Compiler::Gcc, &["-static-pie", "-fpie"]);
    }

    #[test]
    fn musl() {
        with_archive(Compiler::MuslGcc, &[]);
        with_library(Compiler::MuslGcc, &[]);
    }

    #[test]
    fn musl_statically() {
        with_archive(Compiler::MuslGcc, &["-static"]);
    }

    #[test]
    fn c99() {
        let flags = [
            "-std=c99",
            "-pedantic",
            "-Werror",
            "-D_POSIX_C_SOURCE=200809L",
        ];
        with_library(Compiler::Gcc, &flags);
    }

    #[test]
    fn cxx11() {
        let flags = ["-std=c++11", "-pedantic", "-Werror"];
        with_library(Compiler::Gxx, &flags);
    }
}

mod stacks {
    //! Stacks of signals, threads and coroutines.
    crate::probes::parts!("probes_small_stacks.c":
        useless_signal_stack,
        useless_signal_stack_for_traps,
        small_signal_stack,
        small_thread_stacks,
        small_thread_stacks_and_vectors,
        coroutines,
        returns_of_coroutines,
        exits_of_coroutines,
    );
}

mod watched {
    //! Tools that watch a program.

    use crate::probes::{HELPER, command, output, program, program_by, well};
    use crate::programs::Compiler;
    use crate::target::told;
    use std::process::Command;

    const SOURCE: &str = "probes_basic.c";

    /// Runs a program with a sanitizer, which knows only some layouts of memory.
    fn sanitized(flags: &[&str]) {
        let Some(program) = program_by(Compiler::Gcc, SOURCE, flags) else {
            return;
        };
        let mut sanitized = command(std::path::Path::new("setarch"), &["-R"]);
        let output = output(sanitized.arg(program));
        let said = well(&output);
        assert!(output.stderr.is_empty(), "{}", told(&output));
        println!("{said}");
    }

    #[test]
    fn by_address_sanitizer() {
        sanitized(&["-fsanitize=address,undefined"]);
    }

    #[test]
    fn by_thread_sanitizer() {
        sanitized(&["-fsanitize=thread"]);
    }

    /// Valgrind runs translations of the code, in which no probe would be hit.
    #[test]
    fn by_valgrind() {
        let Some(program) = program(SOURCE) else {
            return;
        };
        for option in ["--trace-children=no", "--trace-children=yes"] {
            let mut valgrind = Command::new("valgrind");
            valgrind.args(["-q", "--error-exitcode=9", option]);
            if Command::new("valgrind").arg("--version").output().is_err() {
                println!("skipped: there is no valgrind (Debian: valgrind)");
                return;
            }
            let said = output(
                valgrind
                    .arg(&program)
                    .arg("refused")
                    .env("CAPRIOLE_HELPER", HELPER),
            );
            let text = told(&said);
            assert!(said.status.success(), "{text}");
            assert!(text.contains("-95: "), "{text}");
            assert!(text.contains("is run by Valgrind, "), "{text}");
            assert!(said.stderr.is_empty(), "{text}");
        }
    }
}

mod plugins {
    //! Libraries that probe the program which loads them.

    use crate::probes::{library, program_by, run};
    use crate::programs::{Compiler, build};
    use capriole_testkit::files;
    use std::path::PathBuf;

    const PLUGIN: &str = "probes_guest.c";
    const LOADER: &str = "probes_loader.c";

    /// Builds the plugin with the shared library.
    fn linked(flags: &[&str]) -> Option<PathBuf> {
        program_by(
            Compiler::Gcc,
            PLUGIN,
            &[&["-shared", "-fPIC"], flags].concat(),
        )
    }

    /// Builds the plugin with a libcapriole of its own inside, whose names nobody else sees.
    fn with_a_copy(flags: &[&str]) -> Option<PathBuf> {
        let own = ["-shared", "-fPIC", "-Wl,--exclude-libs,ALL"];
        crate::probes::static_program(Compiler::Gcc, PLUGIN, &[&own, flags].concat())
    }

    /// Runs a part of a program that does not use libcapriole itself.
    fn part(name: &str, plugin: Option<PathBuf>) {
        let include = crate::tools::root().join("include");
        let include = format!("-I{}", files::text(&include));
        if let (Some(plugin), Some(loader)) = (plugin, build(Compiler::Gcc, LOADER, &[&include])) {
            println!("{}", run(&loader, &[name, files::text(&plugin)]));
        }
    }

    /// Runs a part of a program that does.
    fn own_part(name: &str, plugin: Option<PathBuf>) {
        library();
        if let (Some(plugin), Some(loader)) =
            (plugin, program_by(Compiler::Gcc, LOADER, &["-DOWN"]))
        {
            println!("{}", run(&loader, &[name, files::text(&plugin)]));
        }
    }

    #[test]
    fn come_and_go() {
        part("come_and_go", linked(&[]));
    }

    #[test]
    fn with_a_copy_come_and_go() {
        part("come_and_go", with_a_copy(&["-Wl,-z,nodelete"]));
    }

    #[test]
    fn unloaded_with_their_probes() {
        part("unloaded_with_its_probe", linked(&["-Wl,-z,nodelete"]));
        part("unloaded_with_its_probe", with_a_copy(&["-Wl,-z,nodelete"]));
    }

    #[test]
    fn shared() {
        own_part("shared", linked(&[]));
    }

    #[test]
    fn two_copies() {
        own_part("two_copies", with_a_copy(&[]));
    }

    /// The state of a probe in a library that was unloaded, and what it does later, is not tested.
    #[test]
    fn probed_library() {
        own_part("probed_library", linked(&[]));
    }
}
