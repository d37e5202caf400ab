#!/bin/sh
# Becomes the command that is given. Where that is the gateway, which it is if none is given, it
# waits for the database, brings it up to date and makes the gateway known to it before.
#
# The database is named as for every command of sag-pg: SAG_PG_DATABASE_URL, DATABASE_URL or PG*.
#   PGPASSWORD_FILE             file with its password, which goes to PGPASSFILE and nowhere else
#   SAG_PG_WAIT_SECONDS         how long to wait for the database (60)
#   SAG_PG_GATEWAY_SOCKET_DIR   directory of the gateway's Unix socket, as the gateway and the
#                               database's server both see it (/run/sag-gateway)
# or, where the database's server is on another machine, over TLS:
#   SAG_PG_GATEWAY_HOST         name under which that server reaches the gateway
#   SAG_PG_GATEWAY_PORT         port (5454)
#   SAG_PG_GATEWAY_TLS_CERT, SAG_PG_GATEWAY_TLS_KEY   files of the certificate and its key
#   SAG_PG_GATEWAY_SSLROOTCERT  file on the database's server to check the certificate by (system:
#                               the authorities that its operating system trusts)
#
# Messages go to standard error: standard output is the command's.
set -eu

fail() {
    printf 'sag-pg-entrypoint: %s\n' "$@" >&2
    exit 1
}

write_password() {
    [ -r "$PGPASSWORD_FILE" ] ||
        fail "PGPASSWORD_FILE: $PGPASSWORD_FILE cannot be read by user $(id -u)." \
            "Allow it (mode 644, in a directory that only its owner may enter)."
    # The file's last line breaks do not belong to the password.
    escaped=$(sed 's/[\\:]/\\&/g' "$PGPASSWORD_FILE")
    case $escaped in
        '') fail "PGPASSWORD_FILE: $PGPASSWORD_FILE is empty." ;;
        *'
'*) fail "PGPASSWORD_FILE: $PGPASSWORD_FILE has more than one line." ;;
    esac
    # A file rather than PGPASSWORD, so that it is in no process's environment, and that commands
    # which are started in this container later find it.
    : "${PGPASSFILE:?names the file to write the password of PGPASSWORD_FILE to}"
    export PGPASSFILE
    rm -f "$PGPASSFILE"
    (umask 077 && printf '*:*:*:*:%s\n' "$escaped" >"$PGPASSFILE")
    unset escaped
}

wait_for_database() {
    case $wait_seconds in
        '' | *[!0-9]*) fail "SAG_PG_WAIT_SECONDS is not a whole number: $wait_seconds" ;;
    esac
    deadline=$(($(date +%s) + wait_seconds))
    until answer=$(sag-pg status 2>&1 >/dev/null); do
        case $? in
            # Reached; what is to be done with it is for `migrate` to do or to say.
            3 | 4) return 0 ;;
            # No waiting mends a wrong setting.
            2) fail "The settings are wrong." "$answer" ;;
        esac
        [ "$(date +%s)" -lt "$deadline" ] ||
            fail "No database after $wait_seconds s (SAG_PG_WAIT_SECONDS). Its last answer:" \
                "$answer"
        sleep 1
    done
}

make_database_ready() {
    wait_for_database
    sag-pg migrate >&2
    if [ -n "${SAG_PG_GATEWAY_HOST:-}" ]; then
        sag-pg gateway install --host "$SAG_PG_GATEWAY_HOST" --port "$port" \
            --sslmode verify-full --sslrootcert "${SAG_PG_GATEWAY_SSLROOTCERT:-system}" >&2
    else
        sag-pg gateway install --socket-dir "$socket_dir" --port "$port" >&2
    fi
}

# The first process of a container is spared the signals that it has no handler for.
trap 'exit 143' TERM
trap 'exit 130' INT

wait_seconds=${SAG_PG_WAIT_SECONDS-60}
socket_dir=${SAG_PG_GATEWAY_SOCKET_DIR:-/run/sag-gateway}
port=${SAG_PG_GATEWAY_PORT:-5454}

if [ -n "${PGPASSWORD_FILE:-}" ]; then
    write_password
fi
if [ $# -eq 0 ] && [ -n "${SAG_PG_GATEWAY_HOST:-}" ]; then
    set -- sag-pg serve --host 0.0.0.0 --port "$port" \
        --tls-cert "${SAG_PG_GATEWAY_TLS_CERT:?}" --tls-key "${SAG_PG_GATEWAY_TLS_KEY:?}"
elif [ $# -eq 0 ]; then
    # An empty host is none: the socket is all there is.
    set -- sag-pg serve --host '' --socket-dir "$socket_dir" --port "$port"
fi
# Other commands, and the gateway's help, need no database or say themselves what they need.
case "$* " in
    *' --help '*) ;;
    'sag-pg serve '*) make_database_ready ;;
esac
# The command takes this process's place, and with it the signals that the container is sent.
exec "$@"
