//! The simulated store: conditional writes, and requests that are applied but not answered.

use super::*;

fn store(faults: StoreFaults) -> SimStore {
    SimStore::new(Rng::stream(3, "store"), faults)
}

fn ask(store: &mut SimStore, call: Call) -> CallResult {
    let id = store.submit(0, call);
    store.answer(id).expect("under way")
}

fn put(key: &str, byte: u8, condition: Condition) -> Call {
    Call::Put {
        key: key.into(),
        data: vec![byte; 8].into(),
        condition,
    }
}

#[test]
fn of_two_conditional_writes_on_one_version_only_one_wins() {
    let mut store = store(StoreFaults::default());
    let Ok(Reply::Written(first)) = ask(&mut store, put("root", 1, Condition::Absent)) else {
        panic!("refused");
    };
    assert_eq!(
        ask(&mut store, put("root", 2, Condition::Absent)),
        Err(CallError::Lost)
    );
    assert!(ask(&mut store, put("root", 3, Condition::Version(first))).is_ok());
    assert_eq!(
        ask(&mut store, put("root", 4, Condition::Version(first))),
        Err(CallError::Lost)
    );
    let Ok(Reply::Object(bytes, _)) = ask(&mut store, Call::Get { key: "root".into() }) else {
        panic!("gone");
    };
    assert_eq!(bytes, vec![3; 8]);
}

#[test]
fn an_unknown_write_may_have_happened_or_not() {
    let mut store = store(StoreFaults {
        unknown: 10_000,
        ..Default::default()
    });
    for n in 0..40 {
        let key = format!("k{n}");
        assert_eq!(
            ask(&mut store, put(&key, 1, Condition::Absent)),
            Err(CallError::Unknown)
        );
    }
    let held = store.stored().count();
    assert!(held > 5 && held < 35, "{held} of 40");
}

#[test]
fn a_late_write_obeys_its_condition() {
    let faults = StoreFaults {
        unknown: 10_000,
        late: 10_000,
        ..Default::default()
    };
    let mut store = store(faults);
    let mut late = 0;
    for n in 0..40 {
        let key = format!("k{n}");
        let id = store.submit(0, put(&key, 1, Condition::Absent));
        store.answer(id);
        let absent = store.stored().all(|object| object.key != key);
        store.faults.unknown = 0;
        if absent && n % 2 == 0 {
            ask(&mut store, put(&key, 2, Condition::Absent)).expect("free");
        }
        store.faults.unknown = 10_000;
        store.redeliver(id);
        let object = store.stored().find(|object| object.key == key);
        let bytes = object.expect("there").data;
        let expect = if absent && n % 2 == 0 { 2 } else { 1 };
        assert_eq!(bytes[0], expect);
        late += u64::from(absent && n % 2 == 1);
    }
    assert_eq!(store.counts.of(Fault::LateApply), late);
    assert!(late > 0);
}

#[test]
fn nothing_happens_twice_by_itself_and_nothing_during_an_outage() {
    let mut store = store(StoreFaults::default());
    let id = store.submit(0, put("a", 1, Condition::None));
    store.outage = true;
    assert!(matches!(
        store.answer(id),
        Some(Err(CallError::Unknown | CallError::Unavailable))
    ));
    assert_eq!(store.stored().count(), 0);
    store.deliver(id);
    assert_eq!(store.stored().count(), 0);
}

#[test]
fn a_spoiled_read_differs_from_the_object() {
    let mut store = store(StoreFaults::default());
    ask(&mut store, put("a", 1, Condition::None)).expect("written");
    store.faults.get_corrupt = 10_000;
    let Ok(Reply::Object(bytes, _)) = ask(&mut store, Call::Get { key: "a".into() }) else {
        panic!("gone");
    };
    assert_ne!(bytes, vec![1; 8]);
    store.faults = StoreFaults {
        get_truncated: 10_000,
        ..Default::default()
    };
    let Ok(Reply::Range(bytes)) = ask(
        &mut store,
        Call::GetRange {
            key: "a".into(),
            offset: 0,
            len: 8,
        },
    ) else {
        panic!("gone");
    };
    assert!(bytes.len() < 8);
}
