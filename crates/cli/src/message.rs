//! Texts that a recording takes, whoever wrote them: the program at its markers
//! `capriole:message`, and others by `capriole mark`.

use capriole_event::{EventSpec, FieldType, ObjectRef};
use capriole_target::markers::Markers;
use capriole_target::object::Objects;
use capriole_target::resolve::{Site, resolve};
use capriole_trace::{EventInfo, FieldInfo, Role, TextFormat};
use std::path::Path;

/// Whose marker it is that has a text.
const PROVIDER: &str = "capriole";
/// Its name.
const NAME: &str = "message";
/// The section of the notes of `capriole/marker.h`; without it there are no texts.
const NOTES: &str = ".note.capriole";

/// The events at the program's own texts, of each object that has some; but for those that the
/// user has asked for, and so says what is wanted of them.
pub fn events(objects: &Objects, asked: &[EventSpec]) -> Vec<EventSpec> {
    let Ok(spec) = EventSpec::parse(&format!("usdt::{PROVIDER}:{NAME}")) else {
        return Vec::new();
    };
    let asked: Vec<Site> = asked
        .iter()
        .filter(|spec| spec.matches_marker(PROVIDER, NAME))
        .flat_map(|asked| {
            let texts = EventSpec {
                object: asked.object.clone(),
                ..spec.clone()
            };
            // What is wrong with it is told when it is looked for itself.
            resolve(objects, &texts).unwrap_or_default()
        })
        .collect();
    let is_asked = |path: &Path| asked.iter().any(|site| site.object.path() == path);
    let with_notes = objects.all().filter(|object| {
        let file = object.file();
        let has = |markers: &Markers| {
            let mut all = markers.all.iter();
            all.any(|marker| spec.matches_marker(&marker.provider, &marker.name))
        };
        let has_texts = file.section(NOTES).is_some() && file.markers().is_ok_and(has);
        has_texts && !is_asked(object.path())
    });
    let event = |path: String| EventSpec {
        object: ObjectRef::Path(path),
        implied: true,
        ..spec.clone()
    };
    let mut paths: Vec<String> = with_notes
        .filter_map(|object| Some(object.path().to_str()?.to_owned()))
        .collect();
    // One that is loaded twice is one event.
    paths.dedup();
    paths.into_iter().map(event).collect()
}

/// The event as which texts from outside are recorded: as that of the program's own, but at no
/// place.
pub fn from_outside(id: u32) -> EventInfo {
    EventInfo {
        id,
        name: format!("{PROVIDER}:{NAME}"),
        symbol: None,
        symbol_offset: 0,
        object: String::new(),
        build_id: None,
        offset: 0,
        address: 0,
        fields: vec![FieldInfo {
            name: "arg1".to_owned(),
            field_type: FieldType::STRING,
        }],
        faults: false,
        tactic: "none".to_owned(),
        refusals: Vec::new(),
        role: Role::Point,
        call: None,
        format: Some(TextFormat {
            text: "%s".to_owned(),
            arguments: vec![FieldType::U64],
        }),
    }
}
