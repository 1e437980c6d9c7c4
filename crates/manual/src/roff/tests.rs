use super::*;
use crate::Page;

#[test]
fn a_page() {
    let page = Page::parse(
        r#"# T

## Chapter

Text with `--option 'a\b'`, ~, ^, and a – dash; see [stat](stat.md#x), [safety](safety.md),
[the others](stat.md) and `{"a":"012345678901234567890123456789","b":"c"}`.

.starts with a dot

| type | shown as | why |
| --- | --- | --- |
| `u8` | a `number` | |
| `'x'` | | it is |

- item

  ```
  .code --x
  'quoted'

  end\
  ```

### Below

Last.
"#,
    );
    insta::assert_snapshot!(super::page(page.chapter("Chapter").expect("it is there")));
    insta::assert_snapshot!(super::section(
        "Notes",
        page.chapter("Below").expect("it is there")
    ));
    let title = title("a-b", 1, "2026-01-02", "A \"b\"", "Manual");
    assert_eq!(
        title,
        ".TH \"A-B\" 1 \"2026-01-02\" \"A \\(dqb\\(dq\" \"Manual\"\n.ad l\n.nh\n"
    );
}
