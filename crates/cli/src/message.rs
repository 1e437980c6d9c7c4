//! Messages in a recording: from the program, at its markers `capriole:message`, and from
//! outside, by `capriole mark`.

use capriole_event::{EventSpec, FieldType, ObjectRef};
use capriole_object::Objects;
use capriole_object::markers::Markers;
use capriole_planner::resolve::{Site, resolve};
use capriole_trace::{EventInfo, FieldInfo, Role, TextFormat};
use std::path::Path;

/// Provider of the markers that carry messages.
const PROVIDER: &str = "capriole";
/// Name of these markers.
const NAME: &str = "message";
/// Section with the notes of `capriole/marker.h`; without it a file has no messages.
const NOTES: &str = ".note.capriole";

/// Returns an event for the program's own messages for each object that has some, except for
/// objects where the user's events select these markers and so choose the fields.
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
            // Errors are reported when the user's event itself is resolved.
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
    // An object that is loaded twice gets one event.
    paths.dedup();
    paths.into_iter().map(event).collect()
}

/// Returns the event for messages from outside: like that for the program's own, but without a
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
