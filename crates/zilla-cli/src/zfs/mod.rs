//! `zfs`: the table of commands, their usage, and the way into them.
//!
//! A command is a file: it parses its words, asks the daemon, and prints. The table has every
//! command that OpenZFS has, in its order, with its usage text; one without a function is refused
//! by name with exit code 2. What two commands share about choosing datasets is in [`select`],
//! about turning values into text in [`value`].

mod allow;
mod below;
mod bookmark;
mod change;
mod create;
mod destroy;
mod diff;
mod get;
mod holds;
pub(crate) mod keys;
mod list;
mod mount;
mod mount_progress;
mod program;
mod project;
mod receive;
mod redact;
mod rename;
mod rewrite;
mod select;
mod send;
mod share;
mod snapshot;
mod stream;
#[cfg(test)]
mod tests;
mod upgrade;
mod userspace;
mod value;
mod wait;

pub use mount::load_and_mount;

use crate::cx::{Action, Command, Cx, Exit, Run};
use crate::manual;
use crate::zpool;
use zilla_control::props::{self, PropAttr};

/// In the order of the usage message; None is a blank line there.
pub(crate) static COMMANDS: &[Option<Command>] = &[
    command("version", "\tversion [-j]\n", Some(zpool::print_version)),
    None,
    command(
        "create",
        "\tcreate [-Pnpuv] [-o property=value] ... <filesystem>\n\tcreate [-Pnpsv] [-b blocksize] [-o \
         property=value] ... -V <size> <volume>\n",
        Some(create::create),
    ),
    command(
        "destroy",
        "\tdestroy [-fnpRrv] <filesystem|volume>\n\tdestroy [-dnpRrv] \
         <filesystem|volume>@<snap>[%<snap>][,...]\n\tdestroy <filesystem|volume>#<bookmark>\n",
        Some(destroy::run),
    ),
    None,
    command(
        "snapshot",
        "\tsnapshot [-r] [-o property=value] ... <filesystem|volume>@<snap> ...\n",
        Some(snapshot::snapshot),
    ),
    command("rollback", "\trollback [-rRf] <snapshot>\n", Some(snapshot::rollback)),
    command(
        "clone",
        "\tclone [-p] [-o property=value] ... <snapshot> <filesystem|volume>\n",
        Some(create::clone),
    ),
    command("promote", "\tpromote <clone-filesystem>\n", Some(rename::promote)),
    command(
        "rename",
        "\trename [-f] <filesystem|volume|snapshot> <filesystem|volume|snapshot>\n\trename -p [-f] \
         <filesystem|volume> <filesystem|volume>\n\trename -u [-f] <filesystem> <filesystem>\n\trename -r \
         <snapshot> <snapshot>\n",
        Some(rename::rename),
    ),
    command("bookmark", "\tbookmark <snapshot|bookmark> <newbookmark>\n", Some(bookmark::run)),
    command("diff", "\tdiff [-FHth] <snapshot> [snapshot|filesystem]\n", Some(diff::run)),
    None,
    command(
        "list",
        "\tlist [-Hp] [-j [--json-int]] [-r|-d max] [-o property[,...]] [-s property]...\n\t    [-S \
         property]... [-t type[,...]] [filesystem|volume|snapshot] ...\n",
        Some(list::run),
    ),
    None,
    command("set", "\tset [-u] <property=value> ... <filesystem|volume|snapshot> ...\n", Some(change::set)),
    command(
        "get",
        "\tget [-rHp] [-j [--json-int]] [-d max] [-o \"all\" | field[,...]]\n\t    [-t type[,...]] [-s \
         source[,...]]\n\t    <\"all\" | property[,...]> [filesystem|volume|snapshot|bookmark] ...\n",
        Some(get::run),
    ),
    command(
        "inherit",
        "\tinherit [-rS] <property> <filesystem|volume|snapshot> ...\n",
        Some(change::inherit),
    ),
    command(
        "upgrade",
        "\tupgrade [-v]\n\tupgrade [-r] [-V version] <-a | filesystem ...>\n",
        Some(upgrade::run),
    ),
    None,
    command(
        "userspace",
        "\tuserspace [-Hinp] [-o field[,...]] [-s field] ...\n\t    [-S field] ... [-t type[,...]] \
         <filesystem|snapshot|path>\n",
        Some(userspace::users),
    ),
    command(
        "groupspace",
        "\tgroupspace [-Hinp] [-o field[,...]] [-s field] ...\n\t    [-S field] ... [-t type[,...]] \
         <filesystem|snapshot|path>\n",
        Some(userspace::groups),
    ),
    command(
        "projectspace",
        "\tprojectspace [-Hp] [-o field[,...]] [-s field] ... \n\t    [-S field] ... \
         <filesystem|snapshot|path>\n",
        Some(userspace::projects),
    ),
    None,
    command(
        "project",
        "\tproject [-d|-r] <directory|file ...>\n\tproject -c [-0] [-d|-r] [-p id] <directory|file \
         ...>\n\tproject -C [-k] [-r] <directory ...>\n\tproject [-p id] [-r] [-s] <directory ...>\n",
        Some(project::run),
    ),
    None,
    command(
        "mount",
        "\tmount [-j]\n\tmount [-flvO] [-o opts] <-a|-R filesystem|filesystem>\n",
        Some(mount::mount),
    ),
    command("unmount", "\tunmount [-fu] <-a | filesystem|mountpoint>\n", Some(mount::unmount)),
    command("share", "\tshare [-l] <-a [nfs|smb] | filesystem>\n", Some(share::share)),
    command("unshare", "\tunshare <-a [nfs|smb] | filesystem|mountpoint>\n", Some(share::unshare)),
    None,
    command(
        "send",
        "\tsend [-DLPbcehnpsVvw] [-i|-I snapshot]\n\t     [-R [-X dataset[,dataset]...]]     \
         <snapshot>\n\tsend [-DnVvPLecw] [-i snapshot|bookmark] <filesystem|volume|snapshot>\n\tsend \
         [-DnPpVvLec] [-i bookmark|snapshot] --redact <bookmark> <snapshot>\n\tsend [-nVvPe] -t \
         <receive_resume_token>\n\tsend [-PnVv] --saved filesystem\n",
        Some(send::send),
    ),
    command(
        "receive",
        "\treceive [-vMnsFhu] [-o <property>=<value>] ... [-x <property>] ...\n\t    \
         <filesystem|volume|snapshot>\n\treceive [-vMnsFhu] [-o <property>=<value>] ... [-x <property>] ... \
         \n\t    [-d | -e] <filesystem>\n\treceive -A <filesystem|volume>\n",
        Some(receive::receive),
    ),
    command("redact", "\tredact <snapshot> <bookmark> <redaction_snapshot> ...\n", Some(redact::redact)),
    None,
    command(
        "allow",
        "\tallow <filesystem|volume>\n\tallow [-ldug] <\"everyone\"|user|group>[,...] \
         <perm|@setname>[,...]\n\t    <filesystem|volume>\n\tallow [-ld] -e <perm|@setname>[,...] \
         <filesystem|volume>\n\tallow -c <perm|@setname>[,...] <filesystem|volume>\n\tallow -s @setname \
         <perm|@setname>[,...] <filesystem|volume>\n",
        Some(allow::allow),
    ),
    command(
        "unallow",
        "\tunallow [-rldug] <\"everyone\"|user|group>[,...]\n\t    [<perm|@setname>[,...]] \
         <filesystem|volume>\n\tunallow [-rld] -e [<perm|@setname>[,...]] <filesystem|volume>\n\tunallow \
         [-r] -c [<perm|@setname>[,...]] <filesystem|volume>\n\tunallow [-r] -s @setname \
         [<perm|@setname>[,...]] <filesystem|volume>\n",
        Some(allow::unallow),
    ),
    None,
    command("hold", "\thold [-r] <tag> <snapshot> ...\n", Some(holds::hold)),
    command("holds", "\tholds [-rHp] <snapshot> ...\n", Some(holds::holds)),
    command("release", "\trelease [-r] <tag> <snapshot> ...\n", Some(holds::release)),
    None,
    command(
        "load-key",
        "\tload-key [-rn] [-L <keylocation>] <-a | filesystem|volume>\n",
        Some(keys::load_key),
    ),
    command("unload-key", "\tunload-key [-r] <-a | filesystem|volume>\n", Some(keys::unload_key)),
    command(
        "change-key",
        "\tchange-key [-l] [-o keyformat=<value>]\n\t    [-o keylocation=<value>] [-o \
         pbkdf2iters=<value>]\n\t    <filesystem|volume>\n\tchange-key -i [-l] <filesystem|volume>\n",
        Some(keys::change_key),
    ),
    None,
    command(
        "program",
        "\tprogram [-jn] [-t <instruction limit>] [-m <memory limit (b)>]\n\t    <pool> <program file> [lua \
         args...]\n",
        Some(program::run),
    ),
    command(
        "rewrite",
        "\trewrite [-rvx] [-o <offset>] [-l <length>] <directory|file ...>\n",
        Some(rewrite::run),
    ),
    command("wait", "\twait [-t <activity>] <filesystem>\n", Some(wait::run)),
    None,
    command("zone", "\tzone <nsfile> <filesystem>\n", None),
    command("unzone", "\tunzone <nsfile> <filesystem>\n", None),
];

const fn command(name: &'static str, usage: &'static str, run: Option<Action>) -> Option<Command> {
    Some(Command { name, usage, run })
}

/// Runs `zfs` with these arguments; the program's name is not among them.
pub fn main(args: Vec<String>) -> u8 {
    Cx::main("zfs", args, usage, run)
}

fn run(cx: &mut Cx, mut args: Vec<String>) -> Result<u8, Exit> {
    if args.is_empty() {
        return cx.bad_usage("missing command");
    }
    let word = args[0].clone();
    let name = match word.as_str() {
        "help" if args.len() > 1 => return help(cx, &args[1]),
        "-?" | "--help" | "help" => {
            usage(cx, true);
            return Ok(0);
        }
        "-V" | "--version" => return zpool::print_version(cx, Vec::new()),
        "umount" => "unmount",
        "recv" => "receive",
        "snap" => "snapshot",
        other => other,
    };
    let found = match COMMANDS.iter().flatten().find(|c| c.name == name) {
        Some(command) => {
            args.remove(0);
            command
        }
        // `zfs prop=value fs` is `zfs set`.
        None if word.contains('=') => match COMMANDS.iter().flatten().find(|c| c.name == "set") {
            Some(command) => command,
            None => return cx.print_usage(),
        },
        None => return cx.bad_usage(format!("unrecognized command '{name}'")),
    };
    cx.command = found.name;
    match found.run {
        Some(run) => run(cx, args),
        None => {
            cx.err(format!("zfs: '{}' is not supported by zilla yet", found.name));
            Err(Exit(2))
        }
    }
}

/// The manual page of a command or concept; the command's usage where there is none.
fn help(cx: &mut Cx, topic: &str) -> Run {
    if manual::show("zfs", topic) {
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
    let current = COMMANDS.iter().flatten().find(|c| c.name == cx.command);
    match current {
        None => {
            text.push_str("usage: zfs command args ...\nwhere 'command' is one of the following:\n\n");
            for command in COMMANDS {
                text.push_str(command.as_ref().map_or("\n", |c| c.usage));
            }
            text.push_str("\nEach dataset is of the form: pool/[dataset/]*dataset[@name]\n");
        }
        Some(command) => {
            text.push_str("usage:\n");
            text.push_str(command.usage);
        }
    }
    if current.is_some_and(|c| matches!(c.name, "set" | "get" | "inherit" | "list")) {
        text.push_str(&property_help());
    } else {
        text.push_str(
            "\nFor the property list, run: zfs set|get\n\nFor the delegated permission list, run: zfs \
             allow|unallow\n\nFor further help on a command or topic, run: zfs help [<topic>]\n",
        );
    }
    cx.put_usage(&text, requested);
}

fn property_help() -> String {
    let mut text = format!(
        "\nThe following properties are supported:\n\n\t{:<21} {}  {}   {}\n\n",
        "PROPERTY", "EDIT", "INHERIT", "VALUES"
    );
    let mut rows: Vec<_> = props::DATASET_PROPS.iter().filter(|p| p.visible).collect();
    rows.sort_by_key(|p| (p.attr != PropAttr::ReadOnly, p.name));
    for row in rows {
        let edit = if row.readonly() { " NO    " } else { "YES    " };
        let inherit = if row.inheritable() { "  YES   " } else { "   NO   " };
        text.push_str(&format!("\t{:<22} {edit}{inherit}{}\n", row.name, row.values));
    }
    let families = ["user", "group", "project", "userobj", "groupobj", "projectobj"];
    for family in families {
        text.push_str(&format!("\t{:<22}  NO       NO   <size>\n", format!("{family}used@...")));
    }
    for family in families {
        text.push_str(&format!("\t{:<22} YES       NO   <size> | none\n", format!("{family}quota@...")));
    }
    for name in ["written@<snap>", "written#<bookmark>"] {
        text.push_str(&format!("\t{name:<22}  NO       NO   <size>\n"));
    }
    text.push_str(
        "\nSizes are specified in bytes with standard units such as K, M, G, etc.\n\nUser-defined properties \
         can be specified by using a name containing a colon (:).\n\nThe \
         {user|group|project}[obj]{used|quota}@ properties must be appended with\na user|group|project \
         specifier of one of these forms:\n    POSIX name      (eg: \"matt\")\n    POSIX id        (eg: \
         \"126829\")\n    SMB name@domain (eg: \"matt@sun\")\n    SMB SID         (eg: \
         \"S-1-234-567-89\")\n",
    );
    text
}
