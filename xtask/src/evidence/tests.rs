//! The page from the output of benchmarks, as they print it: the whole way but for running them.

use clap::Parser;
use serde_json::json;

use super::page::Page;
use super::plan::Row;
use super::results::{Outcome, Results, RunResult};
use super::section::{Judgement, Measured, NOT_MEASURED, Section};
use super::tables::ROWS;

/// Lines of real runs, each behind the name of its run.
const OUTPUT: &str = include_str!("fixture.txt");

fn all() -> Vec<&'static Row> {
    ROWS.iter().collect()
}

fn result(go: &str, quick: bool) -> RunResult {
    RunResult {
        outcome: Outcome::Measured,
        go: go.to_owned(),
        quick,
        command: "cargo xtask bench x".to_owned(),
        seconds: 5.0,
        load_before: 0.1,
        lanes: Vec::new(),
        figures: Vec::new(),
    }
}

/// The results that the fixture comes to.
fn results() -> Results {
    let mut results = Results::default();
    let lines = OUTPUT.lines().filter(|line| !line.starts_with('#'));
    for (name, line) in lines.filter_map(|line| line.split_once(": ")) {
        let run = results.runs.entry(name.to_owned());
        run.or_insert_with(|| result("2026-11-27 10:00:00 UTC, commit abc", false))
            .take_line(line);
    }
    results
}

/// A row's verdict whose words begin so, if there is one: ours, and how that stands.
fn find_verdict(results: &Results, row: &str, words: &str) -> Option<(String, String)> {
    let row = ROWS.iter().find(|one| one.id == row).unwrap();
    let measured = Measured {
        row: row.id,
        results,
    };
    let mut section = Section::default();
    (row.write)(&measured, &mut section);
    let found = section.verdicts.iter().find(|v| v.what.starts_with(words));
    found.map(|found| {
        let how = match &found.judgement {
            Judgement::Stands(standing) => standing.name().to_owned(),
            Judgement::Withheld(why) => format!("withheld: {why}"),
            Judgement::NotMeasured => NOT_MEASURED.to_owned(),
        };
        (found.ours.clone(), how)
    })
}

fn verdict(results: &Results, row: &str, words: &str) -> (String, String) {
    let found = find_verdict(results, row, words);
    found.unwrap_or_else(|| panic!("{words} is not among the verdicts"))
}

#[test]
fn every_row_has_commands_that_are_understood_limits_and_an_id_of_its_own() {
    for row in &ROWS {
        assert!(!row.runs.is_empty() && !row.limits.is_empty(), "{}", row.id);
        let others = ROWS.iter().filter(|other| other.id == row.id);
        assert_eq!(others.count(), 1, "{}", row.id);
        for run in row.runs {
            for quick in [false, true] {
                let Some(words) = run.words(quick) else {
                    continue;
                };
                let mut command = vec!["xtask"];
                command.extend(words);
                let parsed = crate::Arguments::try_parse_from(&command);
                assert!(parsed.is_ok(), "{}: {:?}", run.name, parsed.err());
                // What it prints for programs is asked for by one of the two.
                assert!(words[0] == "bench" || words.contains(&"--json"));
            }
        }
    }
    let quick: u64 = ROWS
        .iter()
        .flat_map(|row| row.runs)
        .filter_map(|run| run.words(true).map(|_| run.minutes(true)))
        .sum();
    assert!(
        quick < 180,
        "a quick run that hangs at each deadline: {quick} min"
    );
}

#[test]
fn of_how_many_rounds_a_run_is_is_what_its_command_says() {
    for run in ROWS.iter().flat_map(|row| row.runs) {
        for quick in [false, true] {
            let words = run.words(quick).unwrap_or_default();
            let flag = words.iter().position(|word| *word == "--rounds");
            if let Some(at) = flag {
                assert_eq!(words[at + 1], run.rounds(quick).to_string(), "{words:?}");
            }
        }
    }
}

#[test]
fn what_each_benchmark_prints_for_programs_is_read() {
    let results = results();
    for (row, words, ours, standing) in [
        (
            "000",
            "000: quiesces a device, TERM, recent",
            "1.0",
            "equal",
        ),
        ("000", "000: quiesces a device, TERM, 6.12", "25.0", "worse"),
        (
            "000",
            "000: exit of 16 x 24, TERM, s, recent, User",
            "0.38",
            "better",
        ),
        ("000", "000: exit of 8 x 24, TERM, s, 6.12", "2.47", "worse"),
        (
            "001",
            "001: zero-copy by user-copy, randread 4k QD32 x16, time",
            "1.32x",
            "worse",
        ),
        (
            "001",
            "001: p99, zero-copy by user-copy, randread 4k QD32 x16",
            "1.02x",
            "better",
        ),
        ("002", "002: less wait of senders, load B", "800x", "better"),
        (
            "003",
            "003: latency with the mode, 4 KiB, inline",
            "1.65x",
            "better",
        ),
        (
            "003",
            "003: get-data for a second copy, 4k",
            "1.20x",
            "worse",
        ),
        (
            "004",
            "004: fences for a mutex, whole requests, this",
            "1.44x",
            "worse",
        ),
        (
            "004",
            "004: membarrier for a mutex, whole",
            NOT_MEASURED,
            NOT_MEASURED,
        ),
        (
            "peers",
            "peers: NBD, randread 4k QD32, Buffered",
            "1.25x",
            "better",
        ),
        (
            "peers",
            "peers: store at 30 ms, randread",
            "1.10x",
            "better",
        ),
    ] {
        let expected = (ours.to_owned(), standing.to_owned());
        assert_eq!(verdict(&results, row, words), expected, "{words}");
    }
}

#[test]
fn without_like_figures_a_verdict_is_withheld_with_the_reason() {
    let results = results();
    for (row, words, ours, why) in [
        // The store was read from.
        (
            "001",
            "001: zero-copy by user-copy, randread 4k QD64 x1, time",
            "not compared",
            "withheld: requests to the store: 128 in user-copy, 0 in zero-copy",
        ),
        // The control is far off.
        (
            "002",
            "002: less wait of senders, load A",
            "28.3x",
            "withheld: own lock against itself is 0.09x",
        ),
        // A write of 1 MiB took a third of what one of 512 KiB took.
        (
            "003",
            "003: get-data for a second copy, 512k",
            "0.03x",
            "withheld: noise: in copy memcpy a larger write took less",
        ),
    ] {
        let expected = (ours.to_owned(), why.to_owned());
        assert_eq!(verdict(&results, row, words), expected, "{words}");
    }
    // Figures of other machines and modes, and of a lock that does not sleep.
    for (row, words) in [
        ("001", "001: server's memory"),
        ("001", "001: recovery"),
        ("001", "001: p99 of cold reads"),
        ("004", "004: fences for a spin lock"),
    ] {
        assert_eq!(find_verdict(&results, row, words), None, "{words}");
    }
}

#[test]
fn volumes_of_which_no_count_of_store_requests_is_there_are_not_compared() {
    let workload = "randread 4k QD32 x16";
    let mut results = results();
    let run = results.runs.get_mut("001/modes").unwrap();
    // That of one mode is missing.
    run.figures.retain(|row| {
        row["table"] != "modes-store" || row["workload"] != workload || row["server"] != "zero-copy"
    });
    for words in [
        format!("001: zero-copy by user-copy, {workload}, time"),
        format!("001: p99, zero-copy by user-copy, {workload}"),
    ] {
        let why = "withheld: requests to the store: 0 in user-copy, unknown in zero-copy";
        let expected = ("not compared".to_owned(), why.to_owned());
        assert_eq!(verdict(&results, "001", &words), expected);
    }
    let page = Page::of(&all(), &results, "evidence");
    let words =
        "randread 4k QD32 x16 (requests to the store: 0 in user-copy, unknown in zero-copy)";
    assert!(page.text.contains(words), "{}", page.text);
    for (name, chart) in &page.charts {
        let drawn = chart.groups.iter().find(|(group, _)| group == workload);
        assert!(*name != "001-zero-copy" || drawn.unwrap().1.iter().flatten().count() == 1);
    }
}

#[test]
fn what_is_said_of_a_run_that_was_skipped_is_left_out() {
    let sentences = [
        "By these figures the mode pays from 64k on, in instructions.",
        "The other lane counts instructions",
    ];
    let mut results = results();
    let mut skipped = result("2026-11-27 10:00:00 UTC, commit abc", false);
    skipped.outcome = Outcome::Skipped("no emulator".to_owned());
    results.runs.insert("003/instructions".to_owned(), skipped);
    let text = Page::of(&all(), &results, "evidence").text;
    assert!(text.contains("By these figures the mode does not pay, in time."));
    for words in sentences {
        assert!(!text.contains(words), "{words}");
    }
    let run = results.runs.get_mut("003/instructions").unwrap();
    run.outcome = Outcome::Measured;
    for (block, way, mean) in [
        ("4k", "copy memcpy", 10.0),
        ("4k", "get-data", 11.0),
        ("64k", "copy memcpy", 20.0),
        ("64k", "get-data", 15.0),
    ] {
        run.figures.push(json!({
            "table": "get-data", "part": "(2)", "way": way, "block": block, "depth": 1, "mean_us": mean,
        }));
    }
    let text = Page::of(&all(), &results, "evidence").text;
    for words in sentences {
        assert!(text.contains(words), "{words} in {text}");
    }
}

#[test]
fn the_summary_says_which_figures_are_of_one_round() {
    let mut results = results();
    let nbd = "volume to the best peer | 1.00x | 1.25x | better";
    let text = Page::of(&all(), &results, "evidence").text;
    assert!(text.contains(&format!("{nbd} |")), "{text}");
    assert!(text.contains("| 1.0 | equal, of one round |"));
    results.runs.get_mut("peers/nbd").unwrap().quick = true;
    let text = Page::of(&all(), &results, "evidence").text;
    assert!(text.contains(&format!("{nbd}, of one round |")), "{text}");
}

#[test]
fn a_page_shows_ours_beside_the_published_with_source_command_chart_and_limits() {
    let page = Page::of(&all(), &results(), "evidence");
    for words in [
        "| ours (2 rings) | recent, User-Mode Linux | 16 x 24 | TERM | no tracer | no tracer | 0.38 |",
        "| published | with it | 128 x 24 |  | 256 | 2.0 | 2.44 |",
        "| published, one mutex | web server | 15,962 |",
        "commit 2fa9c93035e1",
        "`cargo xtask evidence --only 002`",
        "![000: seconds until no device has a server](evidence/000-exit.svg)",
        "What these machines cannot show:",
        "in one go that began 2026-11-27 10:00:00 UTC, commit abc.",
        "`a_write_that_races_with_a_cold_read_of_its_block_always_wins`",
        "Linux 7.3.4",
    ] {
        assert!(page.text.contains(words), "{words} in {}", page.text);
    }
    let names: Vec<&str> = page.charts.iter().map(|(name, _)| *name).collect();
    assert!(names.contains(&"000-exit"), "{names:?}");
    let (_, chart) = &page.charts[0];
    let note = "User-Mode Linux, 2 processors, Linux 7.3.4; 2026-11-27 10:00:00 UTC, commit abc";
    assert_eq!(chart.note, note);
    for words in ["quick run", "Not of one go", "Beside other load", "@charts"] {
        assert!(!page.text.contains(words), "{words}");
    }
}

#[test]
fn without_results_no_figure_is_ours_and_no_chart_is_drawn() {
    let page = Page::of(&all(), &Results::default(), "evidence");
    assert!(page.charts.is_empty());
    assert!(page.text.contains("**Nothing was measured.**"));
    assert!(
        page.text
            .contains("0 better, 0 equal (within 5 %), 0 worse")
    );
    assert!(page.text.contains("not run in this go"));
    for line in page.text.lines().filter(|line| line.starts_with("| ours")) {
        let mut cells = line.split('|').map(|cell| cell.trim().replace(',', ""));
        let figure = cells.find(|cell| cell.trim_end_matches('x').parse::<f64>().is_ok());
        assert_eq!(figure, None, "{line}");
    }
}

#[test]
fn a_run_that_failed_or_was_skipped_is_named_with_the_reason_and_a_mixed_page_says_so() {
    let mut results = results();
    let mut failed = result("2026-11-28 11:00:00 UTC", true);
    failed.outcome = Outcome::Failed("the guest | died".to_owned());
    failed.load_before = 3.0;
    failed.figures = results.runs["001/soak"].figures.clone();
    results.runs.insert("001/soak".to_owned(), failed);
    let mut skipped = result("2026-11-28 11:00:00 UTC", true);
    skipped.outcome = Outcome::Skipped("it takes too long for a quick look".to_owned());
    results.runs.insert("peers/store".to_owned(), skipped);
    let text = Page::of(&all(), &results, "evidence").text;
    for words in [
        "**failed**: the guest / died (quick, 2026-11-28 11:00:00 UTC)",
        "**skipped**: it takes too long for a quick look |",
        "**Not of one go**",
        "**A quick run**",
        "**Beside other load**: when it began the load average was 3.0",
    ] {
        assert!(text.contains(words), "{words} in {text}");
    }
}

#[test]
fn runs_without_figures_do_not_say_when_and_of_what_a_page_is() {
    let mut results = results();
    for (name, outcome) in [
        ("000/stable", Outcome::Failed("no kernel".to_owned())),
        (
            "001/instructions",
            Outcome::Skipped("no emulator".to_owned()),
        ),
    ] {
        let mut run = result("2026-11-28 11:00:00 UTC, commit def", true);
        run.outcome = outcome;
        run.load_before = 3.0;
        run.lanes.push("QEMU".to_owned());
        results.runs.insert(name.to_owned(), run);
    }
    let page = Page::of(&all(), &results, "evidence");
    assert!(
        page.text
            .contains("Measured in one go that began 2026-11-27")
    );
    for words in [
        "commit def",
        "Not of one go",
        "A quick run",
        "Beside other load",
    ] {
        assert!(!page.text.contains(words), "{words} in {}", page.text);
    }
    for (name, chart) in &page.charts {
        assert!(!chart.note.contains("commit def"), "{name}: {}", chart.note);
    }
}
