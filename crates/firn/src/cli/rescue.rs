//! `firn rescue list|show|fork|drop`: what a host holds of volumes that it does not serve; and what
//! `firn rescue log` has to say.

use super::args::{ApiArgs, RescueCommand, RescueLogArgs};
use super::client::Client;
use super::output;
use crate::failure::{Failure, FailureCode, Result};
use crate::model::{DropRequest, ForkRequest, ForkedVolume, RescueTail, RescueTails};
use crate::server::{LogRescue, LogRescueReport};
use crate::units::Size;

pub(crate) fn rescue(api: &ApiArgs, json: bool, command: RescueCommand) -> Result<()> {
    match command {
        RescueCommand::List if json => output::json(&tails(api)?),
        RescueCommand::List => print_list(&tails(api)?),
        RescueCommand::Show(which) => {
            let tail = find(tails(api)?, &which.tail)?;
            if json {
                output::json(&tail)
            } else {
                print_tail(&tail)
            }
        }
        RescueCommand::Fork {
            which,
            name,
            without_base,
        } => {
            let tail = find(tails(api)?, &which.tail)?;
            let request = ForkRequest { name, without_base };
            let path = format!("/v1/rescue/{}/fork", tail.id);
            let forked: ForkedVolume = Client::new(api)?.post(&path, &request)?;
            if json {
                output::json(&forked)
            } else {
                print_fork(&tail, &forked)
            }
        }
        RescueCommand::Drop { which, force } => {
            let tail = find(tails(api)?, &which.tail)?;
            let path = format!("/v1/rescue/{}/drop", tail.id);
            Client::new(api)?.post_no_content(&path, &DropRequest { force })
        }
        RescueCommand::Log(args) => rescue_log(json, *args),
    }
}

fn tails(api: &ApiArgs) -> Result<RescueTails> {
    Client::new(api)?.get("/v1/rescue")
}

/// The tail of this id, or the only one of a volume of this name.
fn find(all: RescueTails, which: &str) -> Result<RescueTail> {
    let fits = |tail: &RescueTail| tail.id == which || tail.volume == which;
    let mut found: Vec<RescueTail> = all.tails.into_iter().filter(fits).collect();
    match (found.pop(), found.is_empty()) {
        (Some(tail), true) => Ok(tail),
        (Some(last), false) => {
            let ids: Vec<&str> = found
                .iter()
                .chain([&last])
                .map(|tail| tail.id.as_str())
                .collect();
            Err(Failure::invalid(format!(
                "{which} has several tails here; name one of them: {}",
                ids.join(", ")
            )))
        }
        (None, _) => Err(Failure::new(
            FailureCode::NoSuchTail,
            format!("no tail {which} is kept here; see `firn rescue list`"),
        )),
    }
}

fn kind(tail: &RescueTail) -> &'static str {
    if tail.rescue { "rescue" } else { "waiting" }
}

fn print_list(all: &RescueTails) -> Result<()> {
    let rows: Vec<Vec<String>> = all
        .tails
        .iter()
        .map(|tail| {
            vec![
                tail.volume.clone(),
                kind(tail).to_owned(),
                format!("{} to {}", tail.stored_lsn + 1, tail.newest_lsn),
                tail.extents.to_string(),
                Size(tail.log_bytes).to_string(),
                tail.id.clone(),
            ]
        })
        .collect();
    output::table(&["VOLUME", "KIND", "LSN", "EXTENTS", "LOG", "TAIL"], &rows)
}

fn print_tail(tail: &RescueTail) -> Result<()> {
    let why = match tail.rescue {
        true => "another host took the volume over: these writes are in this log alone, for good",
        false => {
            "its volume is not open yet; opening it brings these writes to the store, unless \
             another host had it meanwhile"
        }
    };
    let lines = [
        format!("tail        {}", tail.id),
        format!("volume      {}", tail.volume),
        format!("kind        {} ({why})", kind(tail)),
        format!("stored      up to LSN {}", tail.stored_lsn),
        format!("newest      LSN {}", tail.newest_lsn),
        format!("extents     {} that the store lacks", tail.extents),
        format!("log space   {}", Size(tail.log_bytes)),
    ];
    output::line(&lines.join("\n"))
}

fn print_fork(tail: &RescueTail, forked: &ForkedVolume) -> Result<()> {
    let name = &forked.name;
    let under = match forked.base_lsn {
        Some(lsn) => format!("volume {} as the store had it at LSN {lsn}", tail.volume),
        None => "zeroes (not what the volume held: its state in the store is left out)".to_owned(),
    };
    let mut lines = vec![
        format!("volume      {name}, {}", Size(forked.size_bytes)),
        format!("below       {under}"),
        format!(
            "over it     {} extents of this host's log, up to LSN {}",
            tail.extents, forked.newest_lsn
        ),
    ];
    if forked.damaged_bytes > 0 {
        let damaged = Size(forked.damaged_bytes);
        lines.push(format!(
            "damaged     {damaged} that the log could not give: reads of them fail"
        ));
    }
    lines.push(format!(
        "next        firn attach {name}; then firn rescue drop {}",
        tail.id
    ));
    output::line(&lines.join("\n"))
}

fn rescue_log(json: bool, args: RescueLogArgs) -> Result<()> {
    let rescue = LogRescue::new(args).map_err(Failure::into_usage)?;
    let report = rescue.run()?;
    if json {
        return output::json(&report);
    }
    print_report(&report)
}

fn print_report(report: &LogRescueReport) -> Result<()> {
    for volume in &report.volumes {
        let name = &volume.name;
        let mut line = format!(
            "{name}: stored up to LSN {}, and given back",
            volume.stored_lsn
        );
        if volume.lost_unflushed {
            line.push_str("; writes after its last FLUSH are lost");
        }
        if volume.disk_ended {
            line.push_str(&format!(
                ", so its disk, which has shown them, is not served again: unmount it, then `firn detach \
                 --force {name}` at the next server, and attach the volume anew"
            ));
        }
        output::line(&line)?;
    }
    for (name, why) in &report.without {
        output::line(&format!("{name}: left behind, as --without says: {why}"))?;
    }
    match &report.replaced {
        Some(dir) => output::line(&format!(
            "the next server: firn serve --cache {}",
            dir.display()
        )),
        None => output::line(
            "the log holds nothing that the store lacks; --to and --log-size make the next one",
        ),
    }
}
