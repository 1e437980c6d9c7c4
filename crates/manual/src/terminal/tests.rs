use super::*;
use crate::Page;
use std::path::Path;

const PAGE: &str = r"# Title

Opening `code span` and *stress*,
over two lines, with a [link](elsewhere.md#there) that has only its text here.

## Chapter

| part | forms |
| --- | --- |
| KIND | nothing, `p`, `p:EVENT`, `p:GROUP/EVENT`, and the same with `r` for the return |
| `a\|b` | a bar |
| `u8`, `u16`, `u32`, `u64`, and all the others | a decimal number |

### Below

- first, which is long enough that it has to be wrapped at sixty columns
- second

1. one

   ```
   usdt:./shop:shop:order id item if item ~ tea*              by the names of its format
   short
   ```

2. two

| | functions | never return | why |
| --- | ---: | ---: | --- |
| libc 2.36 | 3,707 | 143 | because of its `abort` and the others that never come back |
| libcrypto | 10,909 | 3 | |

## Next

End.
";

fn shown(width: usize) -> String {
    let page = Page::parse(PAGE);
    let mut text = super::text(page.opening(), width, Look::Plain);
    text += "\n";
    text += &super::text(
        page.chapter("Chapter").expect("it is there"),
        width,
        Look::Plain,
    );
    text
}

#[test]
fn a_page_at_sixty_columns() {
    insta::assert_snapshot!(shown(60));
}

#[test]
fn a_page_at_a_hundred_columns() {
    insta::assert_snapshot!(shown(100));
}

#[test]
fn code_is_broken_wherever_there_is_room() {
    let shown = |line: &str| {
        let code = Block::Code(format!("{line}\n"));
        super::text(&[code], 24, Look::Plain)
    };
    insta::assert_snapshot!(shown("                              far to the right"), @r"
    far to the right
    ");
    assert_eq!(shown(&"é".repeat(25)).matches('é').count(), 25);
    assert_eq!(shown("│││││││││││││││││││ │││││").lines().count(), 2);
    assert_eq!(shown("012345678901234567 x").lines().count(), 1);
}

#[test]
fn styles_take_no_room() {
    let page = Page::parse(PAGE);
    let all = page.chapter("Chapter").expect("it is there");
    let styled = super::text(all, 60, Look::Ansi);
    assert!(styled.contains("\x1b[1mp:EVENT\x1b[0m"), "{styled}");
    let plain = styled
        .replace("\x1b[1m", "")
        .replace("\x1b[4m", "")
        .replace("\x1b[0m", "");
    assert!(!plain.contains('\x1b'));
    assert!(plain.lines().all(|line| line.width() <= 60), "{plain}");
}

#[test]
fn no_page_of_the_documentation_is_wider_than_the_terminal() {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs");
    let mut pages = 0;
    for entry in std::fs::read_dir(docs).expect("the documentation") {
        let path = entry.expect("a file").path();
        if path.extension().is_none_or(|extension| extension != "md") {
            continue;
        }
        let text = std::fs::read_to_string(&path).expect("text");
        let page = Page::parse(&text);
        for width in [40, 60, 80, 132] {
            let shown = super::text(page.blocks(), width, Look::Plain);
            for line in shown.lines() {
                assert!(line.width() <= width, "{path:?} at {width}: {line}");
                assert_eq!(line.trim_end(), line, "{path:?} at {width}");
            }
            // Nothing is left out: each word of its paragraphs and tables is there.
            let letters =
                |text: &str| -> String { text.chars().filter(|c| c.is_alphanumeric()).collect() };
            let all = letters(&shown).to_lowercase();
            for block in page.blocks() {
                if let Block::Paragraph(spans) = block {
                    let wanted = letters(&text_of(spans)).to_lowercase();
                    assert!(all.contains(&wanted), "{path:?} at {width}: {wanted}");
                }
            }
        }
        pages += 1;
    }
    assert!(pages >= 15, "{pages}");
}
