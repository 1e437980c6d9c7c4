//! Parses and formats times, sizes and numbers.

use std::ops::RangeInclusive;
use std::time::Duration;

/// Maximum time that can be given: a year.
const MOST_TIME: Duration = Duration::from_secs(365 * 24 * 3600);
/// Range of sizes that can be given, bytes.
const SIZES: RangeInclusive<u64> = 64 << 10..=1 << 40;

/// Parses `500ms`, `2s`, `1.5m`, `1h`; a bare number is seconds.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let split = text
        .find(|c: char| c.is_ascii_alphabetic())
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let number: f64 = number
        .trim()
        .parse()
        .map_err(|_| "expected a time such as 500ms, 2s or 1m")?;
    let scale = match unit {
        "ns" => 1e-9,
        "us" => 1e-6,
        "ms" => 1e-3,
        "" | "s" => 1.0,
        "m" | "min" => 60.0,
        "h" => 3600.0,
        _ => return Err(format!("unknown unit `{unit}`; use ns, us, ms, s, m or h")),
    };
    let time = Duration::try_from_secs_f64(number * scale).ok();
    time.filter(|time| *time <= MOST_TIME)
        .ok_or_else(|| "the time must be from 0 to 8760h (a year)".into())
}

/// Parses `64M`, `1.5G`, `512K`, `65536`: bytes, with powers of 1024.
pub fn parse_size(text: &str) -> Result<u64, String> {
    let upper = text.trim().to_ascii_uppercase();
    let trimmed = upper.trim_end_matches("IB").trim_end_matches('B');
    let (number, shift) = match trimmed.chars().last() {
        Some('K') => (&trimmed[..trimmed.len() - 1], 10),
        Some('M') => (&trimmed[..trimmed.len() - 1], 20),
        Some('G') => (&trimmed[..trimmed.len() - 1], 30),
        Some('T') => (&trimmed[..trimmed.len() - 1], 40),
        _ => (trimmed, 0),
    };
    let number: f64 = number
        .parse()
        .map_err(|_| "expected a size such as 64M or 1.5G")?;
    let bytes = number * (1u64 << shift) as f64;
    let bytes = (bytes >= 0.0).then_some(bytes as u64);
    bytes
        .filter(|bytes| SIZES.contains(bytes))
        .ok_or_else(|| "the size must be from 64K to 1T".into())
}

/// Formats `1234567` as `1,234,567`.
pub fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut out = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// Formats a count with its noun: `1 probe`, `1,234 probes`.
pub fn counted(number: u64, one: &str, many: &str) -> String {
    format!("{} {}", count(number), if number == 1 { one } else { many })
}

/// Formats a rate: whole numbers, or tenths below 100.
pub fn rate(per_second: f64) -> String {
    let places = usize::from(per_second < 100.0);
    format!("{per_second:.places$}")
}

/// Formats bytes as `39.5 MB`.
pub fn bytes(number: u64) -> String {
    match number {
        0..1000 => format!("{number} B"),
        1000..1_000_000 => format!("{:.1} kB", number as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1} MB", number as f64 / 1e6),
        _ => format!("{:.2} GB", number as f64 / 1e9),
    }
}

/// Formats a time as `0.83 ms`.
pub fn time(duration: Duration) -> String {
    let ns = duration.as_nanos() as f64;
    match ns {
        0.0..1e3 => format!("{ns} ns"),
        1e3..1e6 => format!("{:.1} us", ns / 1e3),
        1e6..1e9 => format!("{:.2} ms", ns / 1e6),
        _ => format!("{:.2} s", ns / 1e9),
    }
}

/// Formats a time in ns with three digits: `479 ns`, `1.54 us`, `15.4 us`, `154 us`, `1.20 ms`.
/// Whole nanoseconds below a microsecond, and whole seconds from 100 s on.
pub fn short_time(ns: f64) -> String {
    // The bounds are those from which rounding gives 1000 of the smaller unit.
    let (number, unit) = match ns {
        _ if ns < 999.5 => return format!("{ns:.0} ns"),
        _ if ns < 999.5e3 => (ns / 1e3, "us"),
        _ if ns < 999.5e6 => (ns / 1e6, "ms"),
        _ => (ns / 1e9, "s"),
    };
    let places = match number {
        _ if number < 9.995 => 2,
        _ if number < 99.95 => 1,
        _ => 0,
    };
    format!("{number:.places$} {unit}")
}

/// Names of the signals of x86-64, from number 1 on.
const SIGNALS: [&str; 31] = [
    "HUP", "INT", "QUIT", "ILL", "TRAP", "ABRT", "BUS", "FPE", "KILL", "USR1", "SEGV", "USR2",
    "PIPE", "ALRM", "TERM", "STKFLT", "CHLD", "CONT", "STOP", "TSTP", "TTIN", "TTOU", "URG",
    "XCPU", "XFSZ", "VTALRM", "PROF", "WINCH", "IO", "PWR", "SYS",
];

/// Formats a signal's number as `SIGSEGV`; real-time signals as `signal 40`.
#[must_use]
pub fn signal(number: i32) -> String {
    let name = usize::try_from(number - 1).ok();
    match name.and_then(|index| SIGNALS.get(index)) {
        Some(name) => format!("SIG{name}"),
        None => format!("signal {number}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_times_have_three_digits() {
        for (ns, shown) in [
            (0.0, "0 ns"),
            (479.4, "479 ns"),
            (999.4, "999 ns"),
            (999.6, "1.00 us"),
            (1536.0, "1.54 us"),
            (9_996.0, "10.0 us"),
            (99_960.0, "100 us"),
            (999_400.0, "999 us"),
            (999_500.0, "1.00 ms"),
            (1.204e6, "1.20 ms"),
            (12.04e6, "12.0 ms"),
            (999.6e6, "1.00 s"),
            (3_600e9, "3600 s"),
        ] {
            assert_eq!(short_time(ns), shown, "{ns}");
        }
    }

    #[test]
    fn durations() {
        assert_eq!(parse_duration("2"), Ok(Duration::from_secs(2)));
        assert_eq!(parse_duration("1.5m"), Ok(Duration::from_secs(90)));
        assert_eq!(parse_duration("250ms"), Ok(Duration::from_millis(250)));
        assert_eq!(parse_duration("8760h"), Ok(MOST_TIME));
        for wrong in ["", "s", "2 parsec", "-1s", "nan", "1e99h", "1e15", "inf"] {
            assert!(parse_duration(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn sizes() {
        assert_eq!(parse_size("64M"), Ok(64 << 20));
        assert_eq!(parse_size("1GiB"), Ok(1 << 30));
        assert_eq!(parse_size("65536"), Ok(65536));
        assert_eq!(parse_size("1.5M"), Ok(3 << 19));
        assert_eq!(parse_size("1T"), Ok(1 << 40));
        for wrong in [
            "",
            "M",
            "12",
            "100T",
            "99999999999G",
            "-1M",
            "0x10",
            "nan",
            "infM",
        ] {
            assert!(parse_size(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn signals() {
        let names = [1, 11, 9, 31, 34, 0];
        assert_eq!(
            names.map(signal),
            [
                "SIGHUP",
                "SIGSEGV",
                "SIGKILL",
                "SIGSYS",
                "signal 34",
                "signal 0"
            ]
        );
    }

    #[test]
    fn numbers() {
        assert_eq!(count(0), "0");
        assert_eq!(count(999), "999");
        assert_eq!(count(1_234_567), "1,234,567");
        assert_eq!(counted(1, "probe", "probes"), "1 probe");
        assert_eq!(counted(1000, "probe", "probes"), "1,000 probes");
        assert_eq!((rate(99.96), rate(1234.5)), ("100.0".into(), "1234".into()));
        assert_eq!(bytes(1_500_000), "1.5 MB");
        assert_eq!(time(Duration::from_micros(830)), "830.0 us");
    }
}
