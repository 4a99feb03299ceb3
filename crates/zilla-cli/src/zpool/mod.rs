//! `zpool`: the table of commands, their usage, and the way into them.
//!
//! A command is a file: it parses its words, asks the daemon, and prints. The table has every
//! command that OpenZFS has, in its order, with its usage text; one without a function is refused
//! by name with exit code 2. How vdevs are named on a command line is in [`vdevspec`], the words of
//! `status` in [`status`], [`status_text`] and [`status_activity`].

mod compat;
mod create;
mod devices;
mod draidspec;
mod events;
mod get;
mod history;
mod identity;
mod import;
mod iostat;
mod labelclear;
mod list;
mod manage;
mod scripts;
mod scrub;
mod split;
mod status;
mod status_activity;
mod status_json;
mod status_text;
mod tables;
#[cfg(test)]
mod tests;
mod upkeep;
mod vdevs;
mod vdevspec;
mod version;
mod wait;

pub use get::{columns as get_columns, table as get_table};
pub use version::run as print_version;

use crate::cx::{Action, Command, Cx, Exit, Run};
use crate::manual;
use zilla_control::props::{self, PropAttr};

/// In the order of the usage message; None is a blank line there.
pub(crate) static COMMANDS: &[Option<Command>] = &[
    command("version", "\tversion [-j]\n", Some(print_version)),
    None,
    command(
        "create",
        "\tcreate [-fnd] [-o property=value] ... \n\t    [-O file-system-property=value] ... \n\t    \
         [-m mountpoint] [-R root] <pool> <vdev> ...\n",
        Some(create::run),
    ),
    command("destroy", "\tdestroy [-f] <pool>\n", Some(manage::destroy)),
    None,
    command("add", "\tadd [-afgLnP] [-o property=value] <pool> <vdev> ...\n", Some(vdevs::add)),
    command("remove", "\tremove [-npsw] <pool> <device> ...\n", Some(vdevs::remove)),
    None,
    command("labelclear", "\tlabelclear [-f] <vdev>\n", Some(labelclear::run)),
    None,
    command("checkpoint", "\tcheckpoint [-d [-w]] <pool> ...\n", Some(identity::checkpoint)),
    command(
        "prefetch",
        "\tprefetch -t <type> [<type opts>] <pool>\n\t    -t ddt <pool>\n",
        Some(tables::prefetch),
    ),
    None,
    command(
        "list",
        "\tlist [-gHLpPv] [-o property[,...]] [-j [--json-int, --json-pool-key-guid]] ...\n\t    [-T d|u] \
         [pool] [interval [count]]\n",
        Some(list::run),
    ),
    command(
        "iostat",
        "\tiostat [[[-c [script1,script2,...][-lq]]|[-rw]] [-T d | u] [-ghHLpPvy]\n\t    [[pool ...]|[pool \
         vdev ...]|[vdev ...]] [[-n] interval [count]]\n",
        Some(iostat::run),
    ),
    command(
        "status",
        "\tstatus [-DdegiLPpstvx] [-c script1[,script2,...]] ...\n\t    [-j|--json [--json-flat-vdevs] \
         [--json-int] [--json-pool-key-guid]] ...\n\t    [-T d|u] [--power] [pool] [interval [count]]\n",
        Some(status::run),
    ),
    None,
    command("online", "\tonline [--power][-e] <pool> <device> ...\n", Some(devices::online)),
    command("offline", "\toffline [--power]|[[-f][-t]] <pool> <device> ...\n", Some(devices::offline)),
    command("clear", "\tclear [[--power]|[-nF]] <pool> [device]\n", Some(devices::clear)),
    command("reopen", "\treopen [-n] <pool>\n", Some(devices::reopen)),
    None,
    command(
        "attach",
        "\tattach [-fsw] [-o property=value] <pool> <device> <new-device>\n",
        Some(vdevs::attach),
    ),
    command("detach", "\tdetach <pool> <device>\n", Some(vdevs::detach)),
    command(
        "replace",
        "\treplace [-fsw] [-o property=value] <pool> <device> [new-device]\n",
        Some(vdevs::replace),
    ),
    command(
        "split",
        "\tsplit [-gLnPl] [-R altroot] [-o mntopts]\n\t    [-o property=value] <pool> <newpool> [<device> \
         ...]\n",
        Some(split::run),
    ),
    None,
    command(
        "initialize",
        "\tinitialize [-c | -s | -u] [-w] <pool> [<device> ...]\n",
        Some(upkeep::initialize),
    ),
    command("resilver", "\tresilver <pool> ...\n", Some(scrub::resilver)),
    command("scrub", "\tscrub [-e | -s | -p | -C] [-w] <pool> ...\n", Some(scrub::run)),
    command("trim", "\ttrim [-dw] [-r <rate>] [-c | -s] <pool> [<device> ...]\n", Some(upkeep::trim)),
    None,
    command(
        "import",
        "\timport [-d dir] [-D]\n\timport [-o mntopts] [-o property=value] ... \n\t    [-d dir | -c \
         cachefile] [-D] [-l] [-f] [-m] [-N] [-R root] [-F [-n]] -a\n\timport [-o mntopts] [-o \
         property=value] ... \n\t    [-d dir | -c cachefile] [-D] [-l] [-f] [-m] [-N] [-R root] [-F \
         [-n]]\n\t    [--rewind-to-checkpoint] <pool | id> [newpool]\n",
        Some(import::run),
    ),
    command("export", "\texport [-af] <pool> ...\n", Some(manage::export)),
    command(
        "upgrade",
        "\tupgrade\n\tupgrade -v\n\tupgrade [-V version] <-a | pool ...>\n",
        Some(identity::upgrade),
    ),
    command("reguid", "\treguid [-g guid] <pool>\n", Some(identity::reguid)),
    None,
    command("history", "\thistory [-il] [<pool>] ...\n", Some(history::run)),
    command("events", "\tevents [-vHf [pool] | -c]\n", Some(events::run)),
    None,
    command(
        "get",
        "\tget [-Hp] [-j [--json-int, --json-pool-key-guid]] ...\n\t    [-o \"all\" | field[,...]] <\"all\" | \
         property[,...]> <pool> ...\n",
        Some(get::get),
    ),
    command(
        "set",
        "\tset <property=value> <pool>\n\tset <vdev_property=value> <pool> <vdev>\n",
        Some(get::set),
    ),
    command("sync", "\tsync [pool] ...\n", Some(manage::sync)),
    None,
    command("wait", "\twait [-Hp] [-T d|u] [-t <activity>[,...]] <pool> [interval]\n", Some(wait::run)),
    None,
    command("ddtprune", "\tddtprune -d|-p <amount> <pool>\n", Some(tables::prune)),
];

const fn command(name: &'static str, usage: &'static str, run: Option<Action>) -> Option<Command> {
    Some(Command { name, usage, run })
}

/// Runs `zpool` with these arguments; the program's name is not among them.
pub fn main(args: Vec<String>) -> u8 {
    Cx::main("zpool", args, usage, run)
}

fn run(cx: &mut Cx, mut args: Vec<String>) -> Result<u8, Exit> {
    if args.is_empty() {
        return cx.bad_usage("missing command");
    }
    let word = args[0].clone();
    match word.as_str() {
        "help" if args.len() > 1 => return help(cx, &args[1]),
        "-?" | "--help" | "help" => {
            usage(cx, true);
            return Ok(0);
        }
        "-V" | "--version" => return print_version(cx, Vec::new()),
        _ => {}
    }
    if word == "freeze" {
        args.remove(0);
        return devices::freeze(cx, args);
    }
    let found = COMMANDS.iter().flatten().find(|c| c.name == word);
    let found = match found {
        Some(command) => {
            args.remove(0);
            command
        }
        // `zpool prop=value pool` is `zpool set`.
        None if word.contains('=') => match COMMANDS.iter().flatten().find(|c| c.name == "set") {
            Some(command) => command,
            None => return cx.print_usage(),
        },
        None => return cx.bad_usage(format!("unrecognized command '{word}'")),
    };
    cx.command = found.name;
    match found.run {
        Some(run) => run(cx, args),
        None => {
            cx.err(format!("zpool: '{}' is not supported by zilla yet", found.name));
            Err(Exit(2))
        }
    }
}

/// The manual page of a command or concept; the command's usage where there is none.
fn help(cx: &mut Cx, topic: &str) -> Run {
    if manual::show("zpool", topic) {
        return Ok(0);
    }
    let Some(command) = COMMANDS.iter().flatten().find(|c| c.name == topic) else {
        cx.err(format!("there is no manual page of '{topic}'"));
        return Ok(1);
    };
    cx.command = command.name;
    usage(cx, true);
    Ok(0)
}

/// The usage message: of the current command, or of all.
fn usage(cx: &mut Cx, requested: bool) {
    let mut text = String::new();
    match COMMANDS.iter().flatten().find(|c| c.name == cx.command) {
        None => {
            text.push_str("usage: zpool command args ...\nwhere 'command' is one of the following:\n\n");
            for command in COMMANDS {
                text.push_str(command.as_ref().map_or("\n", |c| c.usage));
            }
            text.push_str("\nFor further help on a command or topic, run: zpool help [<topic>]\n");
        }
        Some(command) => {
            text.push_str("usage:\n");
            text.push_str(command.usage);
            if matches!(command.name, "get" | "set" | "list") {
                text.push_str(&property_help());
            }
        }
    }
    cx.put_usage(&text, requested);
}

fn property_help() -> String {
    let mut text = format!(
        "\nthe following properties are supported:\n\n\t{:<19}  {}   {}\n\n",
        "PROPERTY", "EDIT", "VALUES"
    );
    let mut rows: Vec<_> = props::POOL_PROPS.iter().filter(|p| p.visible).collect();
    rows.sort_by_key(|p| (p.attr != PropAttr::ReadOnly, p.name));
    for row in rows {
        let edit = if row.readonly() { "  NO   " } else { " YES   " };
        text.push_str(&format!("\t{:<19}  {edit}{}\n", row.name, row.values));
    }
    text.push_str(&format!("\t{:<19}   YES   disabled | enabled | active\n", "feature@..."));
    text.push_str(
        "\nThe feature@ properties must be appended with a feature name.\nSee zpool-features(7).\n",
    );
    text
}
