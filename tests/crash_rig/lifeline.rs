//! What keeps a child from outliving the driver, and signals to a process.

/// The kernel kills this process when the driver dies, also while it is stopped and cannot see its input close.
pub fn die_with_parent() {
    // SAFETY: sets a flag of this process; no memory is involved.
    #[allow(unsafe_code, reason = "the standard library has no words for it")]
    let set = unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
    assert_eq!(set, 0);
}

/// Ends this process at once, as a power failure would.
pub fn die() -> ! {
    // SAFETY: a signal to this process itself.
    #[allow(unsafe_code, reason = "the standard library sends no signals to its own process")]
    unsafe {
        libc::kill(libc::getpid(), libc::SIGKILL);
    }
    loop {
        std::thread::park();
    }
}

/// A signal to a child that was not waited for yet.
pub fn signal(child: &tokio::process::Child, signal: libc::c_int) {
    let Some(id) = child.id() else { return };
    // SAFETY: until the child is waited for, its id is its own.
    #[allow(unsafe_code, reason = "the standard library sends no other signal than SIGKILL")]
    unsafe {
        libc::kill(id.cast_signed(), signal);
    }
}
