//! Sites of static markers.

use std::collections::BTreeSet;
use std::sync::Arc;

use capriole_event::{Place, Probe};

use super::{ResolveError, Site, at_file_offset};
use capriole_object::Object;
use capriole_object::markers::Marker;
use capriole_object::symbols::nearest;

/// Returns the sites of all matching markers, by address.
pub(super) fn sites(object: &Arc<Object>, probe: &Probe) -> Result<Vec<Site>, ResolveError> {
    let markers = object.file().markers()?;
    let meant = markers.all.iter();
    let meant = meant.filter(|marker| probe.place.matches_marker(&marker.provider, &marker.name));
    let site = |marker: &Arc<Marker>| -> Result<Option<Site>, ResolveError> {
        // The address is known to be in the text: it was checked when the markers were read.
        let Some(offset) = object.file().file_offset(marker.address) else {
            return Ok(None);
        };
        Ok(Some(Site {
            marker: Some(Arc::clone(marker)),
            ..at_file_offset(object, offset)?
        }))
    };
    let sites: Result<Vec<Option<Site>>, _> = meant.map(site).collect();
    let sites: Vec<Site> = sites?.into_iter().flatten().collect();
    if !sites.is_empty() {
        return Ok(sites);
    }
    let wanted = match &probe.place {
        Place::Static { provider, name, .. } => format!("{provider}:{name}"),
        _ => String::new(),
    };
    let names: BTreeSet<String> = markers
        .all
        .iter()
        .map(|marker| marker.full_name())
        .collect();
    Err(ResolveError::NoMarker {
        nearest: nearest(&wanted, names.iter().map(String::as_str)),
        wanted,
        object: object.path().to_owned(),
        markers: markers.all.len(),
        unusable: markers.unusable,
    })
}
