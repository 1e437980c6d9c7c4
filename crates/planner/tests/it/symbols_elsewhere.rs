//! Symbols of sections that are not loaded: their values are not addresses.

use crate::fixtures::Workshop;
use capriole_event::EventSpec;
use capriole_object::Objects;
use capriole_planner::resolve::resolve;

/// GCC's link-time optimisation leaves symbols such as `inflate.c.3674510b` in `.debug_info`:
/// weak, hidden, without a type. If one is mistaken for a function start, it cuts a real
/// function in two.
#[test]
fn symbols_of_debug_information_are_no_functions() {
    let mut source = String::from(
        "int sink; int main(void) { for (int i = 0; i < 20; i++) sink += i * sink; return 0; }\n\
         asm(\".pushsection .debug_more,\\\"\\\",@progbits\\nstart: .long 0\\n\"\n",
    );
    for at in (0x1000..0x1800).step_by(4) {
        source += &format!("\".weak m{at:x}\\n.hidden m{at:x}\\n.set m{at:x}, start + {at}\\n\"\n");
    }
    source += "\".popsection\");\n";
    let shop = Workshop::new();
    let Some(program) = shop.compile("gcc", &["-O1"], &source, "elsewhere") else {
        return;
    };
    let objects = Objects::offline(&program).unwrap();
    let sites = |event: &str| resolve(&objects, &EventSpec::parse(event).unwrap().into());
    let main = &sites(":main").unwrap()[0];
    let at = main.link_address;
    assert!(
        (0x1000..0x1700).contains(&at),
        "{at:#x}: no symbol looks as if it were there"
    );
    assert!(main.extent.len() > 16, "{:?}", main.extent);
    assert!(sites(&format!(":m{:x}", (at + 7) / 4 * 4)).is_err());
    assert!(sites(":m1*").is_err());
}
