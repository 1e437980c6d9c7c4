use super::*;

fn page_of<'a>(pages: &'a [ManualPage], name: &str) -> &'a ManualPage {
    let page = pages.iter().find(|page| page.name == name);
    page.unwrap_or_else(|| panic!("no page {name}"))
}

#[test]
fn each_command_has_a_page_with_all_its_options() {
    let pages = pages();
    let mut cli = crate::Cli::command();
    cli.build();
    let mut options = 0;
    for command in cli.get_subcommands() {
        let name = format!("capriole-{}", command.get_name());
        if command.is_hide_set() {
            assert!(pages.iter().all(|page| page.name != name), "{name}");
            continue;
        }
        let text = &page_of(&pages, &name).text;
        for argument in command.get_arguments() {
            if let Some(long) = argument.get_long() {
                let term = format!("\\fB\\-\\-{}\\fR", roff::escaped(long, true));
                assert!(text.contains(&term), "{name}: {long}");
                options += 1;
            }
        }
        for section in [
            "NAME",
            "SYNOPSIS",
            "DESCRIPTION",
            "OPTIONS",
            "FILES",
            "EXIT STATUS",
        ] {
            assert!(
                text.contains(&format!(".SH \"{section}\"\n")),
                "{name}: {section}"
            );
        }
        assert_eq!(
            text.contains(".SH \"EXAMPLES\"\n"),
            command.get_name() != "help",
            "{name}"
        );
    }
    assert!(options > 60, "{options}");
}

#[test]
fn every_page_that_is_referred_to_is_there() {
    let pages = pages();
    let library = std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../../man"));
    let library = library.expect("the library's pages").map(|page| {
        let name = page.expect("a page").file_name();
        name.to_string_lossy().into_owned()
    });
    let mut known: Vec<String> = library.collect();
    known.extend(
        pages
            .iter()
            .map(|page| format!("{}.{}", page.name, page.section)),
    );
    for page in &pages {
        let (_, also) = page
            .text
            .split_once(".SH \"SEE ALSO\"\n")
            .expect(&page.name);
        assert!(also.lines().count() >= 4, "{}", page.name);
        for line in also.lines() {
            let words: Vec<&str> = line.split(' ').collect();
            let [".BR", name, section] = words[..] else {
                panic!("{}: {line}", page.name);
            };
            let section = section.trim_end_matches(',').trim_matches(['(', ')']);
            let file = format!("{}.{section}", name.replace("\\-", "-"));
            assert!(known.contains(&file), "{}: {file}", page.name);
            assert_ne!(file, format!("{}.{}", page.name, page.section));
        }
    }
}

#[test]
fn a_page_takes_options_from_the_documentation() {
    let pages = pages();
    let record = &page_of(&pages, "capriole-record").text;
    // From docs/record.md, which says more than the command's help.
    assert!(record.contains("An existing trace is kept as"), "{record}");
    // As this option is in no table.
    assert!(
        record.contains("Print no progress and no summary"),
        "{record}"
    );
    // The usage of the page is the synopsis.
    assert!(
        !record.contains("capriole record [OPTIONS] (\\-e EVENT"),
        "{record}"
    );
}

#[test]
fn events_have_all_chapters_of_the_reference() {
    let pages = pages();
    let page = page_of(&pages, "capriole-events");
    assert_eq!(page.path(), "share/man/man7/capriole-events.7");
    let headings = topics::EVENTS
        .lines()
        .filter(|line| line.starts_with("## "));
    let mut chapters = 0;
    for heading in headings.map(|line| line.trim_start_matches("## ").to_uppercase()) {
        let section = format!(".SH \"{heading}\"\n");
        assert!(page.text.contains(&section), "{heading}");
        chapters += 1;
    }
    assert!(chapters >= 15, "{chapters}");
}
