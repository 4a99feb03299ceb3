//! The media house's story, `docs/media-house.md`: each of its commands prints what stands there,
//! no file is lost, and OpenZFS agrees.

use std::path::Path;
use zilla_e2e::{Need, World, can, page, zdb_clean};

#[test]
fn the_media_house_loses_no_file() {
    if !can(&[Need::Fuse]) {
        return;
    }
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/media-house.md");
    let text = std::fs::read_to_string(file).expect("the page");
    // A block that were not run would be one that nobody checks.
    assert_eq!(text.matches("```console").count(), text.matches("<!-- run -->\n```console").count());
    let steps = page::steps(&page::blocks(&text, "console"));
    assert!(steps.len() > 40, "{} commands", steps.len());
    let world = World::new();
    for step in &steps {
        page::follow(&world, step);
    }
    for pool in ["video", "archive"] {
        zdb_clean(world.path(), pool);
    }
}
