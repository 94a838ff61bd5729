//! Records: a writer says what it means to write over.

use solehold_core::{
    command::{Command, Over},
    record::Record,
};

use crate::common::{World, document, name};

fn put(text: &str, over: Over) -> Command {
    Command::PutRecord {
        record: Record { collection: name("key"), id: name("k1"), document: document(text) },
        over,
    }
}

#[test]
fn a_write_over_what_was_read_does_not_undo_what_another_wrote_meanwhile() {
    let mut w = World::new();
    let read = || Over::Document(document("one"));
    w.told(put("two", read())).says("refused: key k1 does not exist", "");
    w.told(put("one", Over::Nothing)).says("record k1", "");
    w.told(put("one", Over::Nothing)).says("refused: already exists", "");
    w.told(put("two", read())).says("record k1", "");
    w.told(put("three", read())).says("refused: key k1 was changed concurrently; read it again", "");
    let kept = w.state.record(&name("key"), &name("k1")).map(|record| record.document.clone());
    assert_eq!(kept, Some(document("two")));
    w.told(put("four", Over::Anything)).says("record k1", "");
}
