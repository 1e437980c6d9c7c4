//! Checks whether the kernel trusts the TSC.

use capriole_proc::files;

/// Returns a warning that gives the reason why times in a trace of this machine may be wrong;
/// `None` if the TSC is a usable clock here.
///
/// It is usable if the kernel uses it as its clock source, or offers it as one (under a
/// hypervisor the source is `kvm-clock` or `hyperv`, which are derived from the TSC), or if the
/// processor reports that the counter runs at one rate in all power states. A machine without
/// the clock source files gets no warning.
pub fn unstable_warning() -> Option<String> {
    let source = "/sys/devices/system/clocksource/clocksource0";
    let current = files::read_pseudo_text(format!("{source}/current_clocksource")).ok()?;
    let available = files::read_pseudo_text(format!("{source}/available_clocksource")).ok()?;
    let cpuinfo = files::read_pseudo_text("/proc/cpuinfo").unwrap_or_default();
    warning(current.trim(), &available, &cpuinfo)
}

/// Decides based on the contents of the three files.
fn warning(current: &str, available: &str, cpuinfo: &str) -> Option<String> {
    let made_of_tsc = matches!(current, "tsc" | "kvm-clock" | "xen")
        || current.starts_with("hyperv_clocksource_tsc");
    let flag = |name: &str| {
        let flags = cpuinfo.lines().find(|line| line.starts_with("flags"));
        flags.is_some_and(|line| line.split_whitespace().any(|flag| flag == name))
    };
    let offered = available.split_whitespace().any(|name| name == "tsc");
    if made_of_tsc || (offered && flag("constant_tsc") && flag("nonstop_tsc")) {
        return None;
    }
    Some(format!(
        "the kernel keeps time with {current} and not with the time stamp counter (TSC), which \
         it does not trust on this machine: times in this trace may be off, or out of order \
         between CPUs (see `dmesg | grep -i tsc`)"
    ))
}

#[cfg(test)]
mod tests {
    use super::warning;

    const STEADY: &str = "processor\t: 0\nflags\t\t: fpu tsc constant_tsc nonstop_tsc\n";

    #[test]
    fn a_source_made_of_the_tsc_is_fine() {
        assert_eq!(warning("tsc", "tsc hpet", ""), None);
        assert_eq!(warning("kvm-clock", "kvm-clock", ""), None);
        assert_eq!(warning("hyperv_clocksource_tsc_page", "", ""), None);
    }

    #[test]
    fn another_source_is_fine_if_the_tsc_is_still_offered_and_steady() {
        assert_eq!(warning("hpet", "tsc hpet acpi_pm", STEADY), None);
        assert!(warning("hpet", "tsc hpet acpi_pm", "flags : fpu tsc\n").is_some());
    }

    #[test]
    fn a_withdrawn_tsc_is_a_warning_that_names_the_source() {
        let text = warning("hpet", "hpet acpi_pm", STEADY).unwrap();
        assert!(text.contains("keeps time with hpet"), "{text}");
    }
}
