//! Instruction boundaries against a second opinion: binutils' objdump.

mod support;

use std::collections::HashMap;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use capriole_insn::{Code, FunctionFlow};
use support::elf::{Elf, find_library};

/// Address and length of each instruction, as objdump sees them; 0 for bytes
/// it does not know.
fn objdump(path: &std::path::Path) -> Option<HashMap<u64, u64>> {
    let mut child = Command::new("objdump")
        .args(["-d", "--wide"])
        .arg(path)
        .stdout(Stdio::piped())
        .spawn()
        .ok()?;
    let mut lengths = HashMap::new();
    let mut line = Vec::new();
    let mut output = BufReader::with_capacity(1 << 20, child.stdout.take()?);
    loop {
        line.clear();
        if output.read_until(b'\n', &mut line).ok()? == 0 {
            break;
        }
        // "  1139:\t55 48 89 e5 \tpush ..."
        let mut fields = line.split(|&b| b == b'\t');
        let (Some(address), Some(bytes), Some(text)) =
            (fields.next(), fields.next(), fields.next())
        else {
            continue;
        };
        let address = std::str::from_utf8(address).ok()?.trim();
        let Some(address) = address.strip_suffix(':') else {
            continue;
        };
        let address = u64::from_str_radix(address, 16).ok()?;
        let length = bytes.split(|&b| b == b' ').filter(|b| b.len() == 2).count() as u64;
        let known = !text.starts_with(b"(bad)") && !text.starts_with(b".byte");
        lengths.insert(address, if known { length } else { 0 });
    }
    child.wait().ok()?.success().then_some(lengths)
}

#[test]
fn lengths_agree_with_objdump() {
    for name in ["libc.so.6", "libsqlite3.so.0", "libstdc++.so.6"] {
        let Some(path) = find_library(name) else {
            println!("skipped: no {name} on this system");
            continue;
        };
        let Some(lengths) = objdump(&path) else {
            println!("skipped: objdump cannot be run");
            return;
        };
        let elf = Elf::open(&path).unwrap();
        let (bytes, address) = elf.text();
        let code = Code::new(bytes, address);
        let (mut functions, mut instructions, mut unknown) = (0, 0, 0);
        for (symbol, extent) in elf.functions() {
            let flow = FunctionFlow::analyse(&code, &extent).unwrap();
            functions += 1;
            for at in flow.boundaries() {
                let length = flow.instruction_around(at).unwrap().len();
                match lengths.get(&at) {
                    // objdump goes on in its own step behind bytes it does not
                    // know, and splits prefixes that mean nothing from nops.
                    Some(&theirs) if theirs == length => instructions += 1,
                    Some(0) | None => unknown += 1,
                    Some(theirs) => {
                        panic!("{name}: {symbol} {at:#x}: {length} bytes, objdump says {theirs}")
                    }
                }
            }
        }
        println!(
            "{name}: {functions} functions, {instructions} instructions agree, {unknown} unknown to objdump"
        );
        assert!(instructions > 10_000);
        assert!(
            unknown * 1000 < instructions,
            "{name}: {unknown} unknown to objdump"
        );
    }
}
