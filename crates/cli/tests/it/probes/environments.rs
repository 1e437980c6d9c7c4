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
        helper_ends,
        executed,
        spawned,
        fork_in_a_handler,
        thread_ends_in_a_handler,
        own_signal_handlers,
    );
}
