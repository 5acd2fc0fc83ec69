//! Options for sockets, passwords, users and refused commands.

use respool_engine::settings::User;

use super::parse::{
    DEBUG_OBJECT_PASSES, is_debug_object_passed, parse_commands, parse_mode, parse_path,
    parse_secret, parse_user,
};
use super::{AtReload, OPTION, Opt, OptionKind, Topic};
use crate::account;
use crate::password_command::PasswordCommand;

pub(super) const PASSWORD: Opt = Opt {
    name: "password",
    topic: Topic::Access,
    kind: OptionKind::Text {
        set: |values, text| {
            values.password = Some(parse_secret(text)?);
            Ok(())
        },
        get: |values| values.password.clone(),
        or_number: false,
    },
    value: "PASSWORD",
    brief: "The password of the user `default`, for AUTH by clients",
    more: "Without a password and without users, every client may connect, as with a Redis without \
           a password.",
    example: "a-long-one",
    variable: Some("RESPOOL_PASSWORD"),
    secret: true,
    at_reload: AtReload::Applies,
    of_program: true,
    ..OPTION
};

pub(super) const PASSWORD_FILE: Opt = Opt {
    name: "password-file",
    topic: Topic::Access,
    kind: OptionKind::Text {
        set: |values, text| {
            values.password_file = Some(parse_path(text)?);
            Ok(())
        },
        get: |values| {
            values
                .password_file
                .as_deref()
                .map(|path| path.display().to_string())
        },
        or_number: false,
    },
    value: "FILE",
    brief: "A file with the password of the user `default`",
    more: "A line end behind the password is not part of it. A reload of the \
           configuration reads the file again. Sessions that have authenticated stay.",
    example: "/run/credentials/respool/password",
    at_reload: AtReload::Applies,
    of_program: true,
    ..OPTION
};

pub(super) const SOCKET_MODE: Opt = Opt {
    name: "socket-mode",
    topic: Topic::Access,
    kind: OptionKind::Text {
        set: |values, text| {
            values.socket_mode = parse_mode(text)?;
            Ok(())
        },
        get: |values| Some(format!("{:04o}", values.socket_mode)),
        or_number: false,
    },
    value: "MODE",
    brief: "The mode of sockets in the file system on which respool listens",
    more: "In octal, as for chmod. A client needs the right to write to the socket. By default the \
           mode is 0777, whatever the umask is: every user of the machine that can reach the \
           directory may connect, as with the sockets of PostgreSQL. To restrict that, set a \
           password, or give the socket a group and the mode 0660, or put the socket into a \
           directory that only its clients may enter.",
    example: "0660",
    of_program: true,
    ..OPTION
};

pub(super) const SOCKET_OWNER: Opt = Opt {
    name: "socket-owner",
    topic: Topic::Access,
    kind: OptionKind::Text {
        set: |values, text| {
            values.socket_owner = Some(account::user(text)?);
            Ok(())
        },
        get: |values| values.socket_owner.as_ref().map(|owner| owner.name.clone()),
        or_number: false,
    },
    value: "USER",
    brief: "The owner of respool's Unix sockets: the name or number of a user",
    more: "Only root may give a socket to another user.",
    example: "root",
    of_program: true,
    ..OPTION
};

pub(super) const SOCKET_GROUP: Opt = Opt {
    name: "socket-group",
    topic: Topic::Access,
    kind: OptionKind::Text {
        set: |values, text| {
            values.socket_group = Some(account::group(text)?);
            Ok(())
        },
        get: |values| values.socket_group.as_ref().map(|group| group.name.clone()),
        or_number: false,
    },
    value: "GROUP",
    brief: "The group of respool's Unix sockets: its name or number",
    more: "Without root, respool may give them to groups that it belongs to.",
    example: "root",
    of_program: true,
    ..OPTION
};

pub(super) const USER: Opt = Opt {
    name: "user",
    topic: Topic::Access,
    kind: OptionKind::List {
        push: |values, text| {
            values.users.push(parse_user(text)?);
            Ok(())
        },
        clear: |values| values.users.clear(),
        get: |values| {
            let text = |user: &User| format!("{}:{}", user.name, user.password);
            values.users.iter().map(text).collect()
        },
    },
    value: "NAME:PASSWORD",
    brief: "A further user that may connect; may be given several times",
    more: "For clients that send AUTH NAME PASSWORD. The name ends at the first colon. To the \
           server, every client is the one user that --backend names.",
    example: "alice:a-long-one",
    secret: true,
    at_reload: AtReload::Applies,
    of_program: true,
    ..OPTION
};

pub(super) const REFUSE_COMMANDS: Opt = Opt {
    name: "refuse-commands",
    topic: Topic::Access,
    kind: OptionKind::List {
        push: |values, text| {
            let (passing, refused): (Vec<&str>, Vec<&str>) = text
                .split(',')
                .partition(|name| is_debug_object_passed(name));
            values.passes_debug_object |= !passing.is_empty();
            if text != "none" && !refused.is_empty() {
                values.refused.extend(parse_commands(&refused.join(","))?);
            }
            Ok(())
        },
        clear: |values| {
            values.refused.clear();
            values.passes_debug_object = false;
        },
        get: |values| match &values.refused[..] {
            [] => vec!["none".into()],
            refused => {
                let names = refused.iter().map(|id| id.get().name);
                let passing = values.passes_debug_object.then_some(DEBUG_OBJECT_PASSES);
                names.chain(passing).map(str::to_owned).collect()
            }
        },
    },
    value: "COMMAND",
    brief: "A command that no client may use; may be given several times",
    more: "It applies to every request of a client, also in a transaction, as an inline command, \
           from a subscriber and before AUTH. It does not apply to commands that scripts, \
           functions and modules call within the server. Only a rule of the server's ACL prevents \
           such commands, for the user of `--backend` or for the users of clients: `ACL SETUSER \
           NAME -flushall`. A command that the server has renamed is refused by both \
           names.\n\n`none` refuses no command. `config|set` refuses one subcommand; `config` \
           refuses all its subcommands. Several names may be given at once, with commas between \
           them. `!debug|object` lets DEBUG OBJECT pass though `debug` is refused. The given names \
           replace the default: the commands by which one client could harm all others.",
    example: "shutdown,flushall,config",
    at_reload: AtReload::Applies,
    ..OPTION
};

pub(super) const BACKEND_PASSWORD: Opt = Opt {
    name: "backend-password",
    topic: Topic::Access,
    kind: OptionKind::Text {
        set: |values, text| {
            values.backend_password = Some(parse_secret(text)?);
            Ok(())
        },
        get: |values| values.backend_password.clone(),
        or_number: false,
    },
    value: "PASSWORD",
    brief: "The password that respool sends to the server by AUTH",
    more: "It replaces the password in --backend. The URL still names the user, unless it is \
           `default`: redis://USER@HOST.",
    example: "a-long-one",
    variable: Some("RESPOOL_BACKEND_PASSWORD"),
    secret: true,
    at_reload: AtReload::Applies,
    ..OPTION
};

pub(super) const BACKEND_PASSWORD_FILE: Opt = Opt {
    name: "backend-password-file",
    topic: Topic::Access,
    kind: OptionKind::Text {
        set: |values, text| {
            values.backend_password_file = Some(parse_path(text)?);
            Ok(())
        },
        get: |values| {
            values
                .backend_password_file
                .as_deref()
                .map(|path| path.display().to_string())
        },
        or_number: false,
    },
    value: "FILE",
    brief: "A file with the password that respool sends to the server",
    more: "A line end behind the password is not part of it.\n\nrespool looks at the file every \
           5 seconds, and reads it when a server refuses the password and at a reload. New connections use the new password; \
           open ones stay. If the file cannot be read or is empty, the earlier password stays, and \
           the log says so.",
    example: "/run/credentials/respool/backend-password",
    at_reload: AtReload::Applies,
    ..OPTION
};

pub(super) const BACKEND_PASSWORD_COMMAND: Opt = Opt {
    name: "backend-password-command",
    topic: Topic::Access,
    kind: OptionKind::Text {
        set: |values, text| {
            values.backend_password_command = Some(PasswordCommand::parse(text)?);
            Ok(())
        },
        get: |values| {
            let command = values.backend_password_command.as_ref();
            command.map(PasswordCommand::to_string)
        },
        or_number: false,
    },
    value: "COMMAND",
    brief: "A command that prints the password or token for the server",
    more: "Such a token may come from a cloud's IAM or from a vault. The option's value is the \
           absolute path of a program and its arguments, with spaces between them; there is no \
           shell. The command prints the password on one line, and may print the lifetime of the \
           password in seconds on a second line. It has 10 seconds for that.\n\nrespool runs \
           the command at the start, when three quarters of the lifetime are over, when a server \
           refuses the password, and at a reload. New connections use the new password, and open \
           ones authenticate with it. If the command fails, the earlier password stays, the log \
           says so, and respool tries again.",
    example: "/usr/local/bin/cache-token --user app",
    at_reload: AtReload::Applies,
    ..OPTION
};
