use super::*;

/// Address of the table in a target.
const BASE: u64 = 0x5000_0000;

/// Mixes the bits of a number (SplitMix64).
fn mixed(number: u64) -> u64 {
    let mut mixed = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

fn word(table: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(table[at..at + 8].try_into().expect("8 bytes"))
}

fn half(table: &[u8], at: usize) -> usize {
    u32::from_le_bytes(table[at..at + 4].try_into().expect("4 bytes")) as usize
}

/// Looks an address up in the table at `head`, as `rule_at` in chain.c does: only the rows that the blocks
/// name.
fn found(table: &[u8], head: u64, address: u64) -> u32 {
    let head = (head - BASE) as usize;
    for module in 0..word(table, head + unwinding::MODULES) as usize {
        let at = head + unwinding::HEAD + module * unwinding::MODULE;
        let start = word(table, at + unwinding::START);
        if !(start..word(table, at + unwinding::END)).contains(&address) {
            continue;
        }
        if half(table, at + unwinding::BLOCKS) == unwinding::WHOLE as usize {
            return half(table, at + unwinding::ROWS) as u32;
        }
        let rows = 8 * half(table, at + unwinding::ROWS);
        let place = address - start;
        let block = (place >> unwinding::BLOCK_SHIFT) as usize;
        let block = 8 * half(table, at + unwinding::BLOCKS) + 4 * block;
        let candidates = half(table, block)..=half(table, block + 4);
        let row = candidates.rev().map(|row| word(table, rows + 8 * row));
        let row = row.into_iter().find(|row| row >> 32 <= place);
        return row.expect("a row that holds at the block's start") as u32;
    }
    row::UNKNOWN
}

/// Returns rules at random distances from each other, from link address `first` on.
fn rules(seed: u64, first: u64, count: u64) -> Vec<RuleStart> {
    let mut address = first;
    let rule = |number: u64| match number % 7 {
        0 => FrameRule::Unknown,
        1 => FrameRule::Outermost,
        2 => FrameRule::Signal,
        kind => FrameRule::Frame {
            cfa: match kind {
                3 => Cfa::Rsp((number >> 8) as u32 % (MOST_DISTANCE / 8 + 1) * 8),
                4 => Cfa::Rbp((number >> 8) as u32 % (MOST_DISTANCE / 8 + 1) * 8),
                5 => Cfa::Saved(MOST_DISTANCE),
                _ => Cfa::Plt,
            },
            rbp: match number >> 40 & 3 {
                0 => SavedRbp::Unchanged,
                1 => SavedRbp::AtRbp,
                2 => SavedRbp::Unknown,
                _ => SavedRbp::BelowCfa((1 + (number >> 42) as u32 % (MOST_SAVED / 8)) * 8),
            },
        },
    };
    (0..count)
        .map(|number| {
            let random = mixed(seed ^ number << 20);
            // Many in a block, and many blocks without any.
            address += 1 + random % if random & 0x300 == 0 { 3000 } else { 40 };
            RuleStart {
                address,
                rule: rule(mixed(random)),
            }
        })
        .collect()
}

#[test]
fn a_table_has_the_rules_of_all_modules() {
    for seed in 0..30 {
        let modules: Vec<Module> = (0..5)
            .map(|number| {
                let start = 0x7f00_0000_0000 + number * 0x100_0000;
                let link = 0x1000 * (mixed(seed + number) % 8);
                Module {
                    addresses: start..start + 0x1000 * (1 + mixed(seed ^ number) % 30),
                    link,
                    rules: rules(seed << 8 | number, 0x800, mixed(seed) % 3000),
                }
            })
            .collect();
        // All at once, or some later.
        let first = mixed(seed + 7) as usize % 6;
        let mut table = Table::from(BASE);
        let (mut made, _) = table.add(&modules[..first], BASE);
        let (more, head) = table.add(&modules[first..], BASE + made.len() as u64);
        made.extend(more);
        assert_eq!(word(&made, (head - BASE) as usize + unwinding::MODULES), 5);
        assert!(made.len().is_multiple_of(8));
        assert!(made.len() <= Table::size(&modules) + table.size_of_head());
        for number in 0..5000 {
            let random = mixed(seed << 32 | number);
            let module = &modules[random as usize % 5];
            let size = module.addresses.end - module.addresses.start;
            let place = (random >> 8) % size;
            let link = module.link + place;
            let next = module.rules.partition_point(|rule| rule.address <= link);
            let rule = next.checked_sub(1).map(|at| module.rules[at].rule);
            let expected = encoded(rule.unwrap_or(FrameRule::Unknown));
            assert_eq!(found(&made, head, module.addresses.start + place), expected);
        }
        let end = modules[4].addresses.end;
        assert_eq!(found(&made, head, end), row::UNKNOWN);
        assert_eq!(found(&made, head, 0x1234), row::UNKNOWN);
    }
}

#[test]
fn rules_keep_their_parts() {
    let rule = FrameRule::Frame {
        cfa: Cfa::Rbp(MOST_DISTANCE),
        rbp: SavedRbp::BelowCfa(MOST_SAVED),
    };
    let all = encoded(rule);
    assert_eq!(all & 7, row::RBP);
    assert_eq!(all >> row::KIND_BITS & 0x3ffff, MOST_DISTANCE / 8);
    assert_eq!(all >> row::RBP_SHIFT, 2000);
}

#[test]
fn a_module_that_no_place_reaches_is_left_out() {
    let module = |size: u64| Module {
        addresses: 0x1000..0x1000 + size,
        link: 0,
        rules: Vec::new(),
    };
    for modules in [&[module((1 << 32) + 1)][..], &[module(0)], &[]] {
        let mut table = Table::from(BASE);
        let (made, head) = table.add(modules, BASE);
        assert_eq!((head, word(&made, 0), word(&made, 8)), (BASE, BASE, 0));
        assert_eq!(made.len(), Table::size(modules));
    }
}

/// One rule takes no more room for a large module than for a small one.
#[test]
fn a_module_with_one_rule_has_no_rows() {
    let module = Module {
        addresses: 0x10_0000..0x10_0000 + (512 << 20),
        link: 7,
        rules: vec![RuleStart {
            address: 0,
            rule: FrameRule::Called,
        }],
    };
    let mut table = Table::from(BASE);
    let modules = [module];
    let (made, head) = table.add(&modules, BASE);
    assert_eq!(made.len(), Table::size(&modules));
    assert_eq!(made.len(), unwinding::HEAD + unwinding::MODULE);
    let rule = encoded(FrameRule::Called);
    assert_eq!(found(&made, head, 0x10_0000), rule);
    assert_eq!(found(&made, head, 0x10_0000 + (512 << 20) - 1), rule);
    assert_eq!(found(&made, head, 0x10_0000 + (512 << 20)), row::UNKNOWN);
    assert_eq!(rule & 7, row::CALLED);
    assert_eq!(rule >> row::KIND_BITS & 0x3ffff, 2);
    assert_eq!(rule >> row::RBP_SHIFT, row::RBP_THERE);
}

/// A module replaces those that it overlaps, also in part.
#[test]
fn a_module_replaces_those_that_it_overlaps() {
    let module = |start: u64, rule: FrameRule| Module {
        addresses: start..start + 0x1000,
        link: 0,
        rules: vec![RuleStart { address: 0, rule }],
    };
    let mut table = Table::from(BASE);
    let old = [0x1000, 0x2000, 0x3000].map(|start| module(start, FrameRule::Outermost));
    let (mut made, first) = table.add(&old, BASE);
    let (more, head) = table.add(
        &[module(0x2800, FrameRule::Signal)],
        BASE + made.len() as u64,
    );
    made.extend(more);
    let of = |head: u64| [0x1000, 0x2000, 0x2800, 0x37ff, 0x3800].map(|at| found(&made, head, at));
    assert_eq!(of(first), [row::OUTERMOST; 5]);
    let (none, new) = (row::UNKNOWN, row::SIGNAL);
    assert_eq!(of(head), [row::OUTERMOST, none, new, new, none]);
}
