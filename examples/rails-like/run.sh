#!/usr/bin/env bash
# A Sinatra application on PostgreSQL with its own jobs table, and two servers on it, of which one is killed.
# usage: examples/rails-like/run.sh      WINDLASS=/path/to/windlass uses that binary instead of building one;
#                                        WINDLASS_TEST_POSTGRES=URL makes a database there instead of starting a server
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
comments=${COMMENTS:-200}

for need in psql:postgresql-client ruby:ruby curl:curl; do
    command -v "${need%:*}" >/dev/null && continue
    echo "installing: ${need#*:}" >&2
    { apt-get update -qq && apt-get install -y -qq --no-install-recommends "${need#*:}" >/dev/null; } ||
        { echo "this example needs ${need%:*}: apt-get install ${need#*:}" >&2; exit 69; }
done
for need in sinatra/base:ruby-sinatra active_record:ruby-activerecord pg:ruby-pg webrick:ruby-webrick; do
    ruby -e "require '${need%:*}'" 2>/dev/null && continue
    echo "installing: ${need#*:}" >&2
    { apt-get update -qq && apt-get install -y -qq --no-install-recommends "${need#*:}" >/dev/null; } ||
        { echo "this example needs ${need#*:}: apt-get install ${need#*:}" >&2; exit 69; }
done
if [ -z "${WINDLASS:-}" ]; then
    (cd "$here/../.." && cargo build --release --quiet --bin windlass)
    WINDLASS=$here/../../target/release/windlass
fi

work=$(mktemp -d)
chmod 755 "$work"
started=()
database=rails_like_$$
finish() {
    kill -CONT "${started[@]}" 2>/dev/null || true
    kill "${started[@]}" 2>/dev/null || true
    wait
    if [ -n "${WINDLASS_TEST_POSTGRES:-}" ]; then
        psql "$WINDLASS_TEST_POSTGRES" -qc "DROP DATABASE IF EXISTS $database WITH (FORCE)" || true
    fi
    rm -rf "$work"
}
trap finish EXIT
read -r web udp pg < <(ruby -rsocket -e 'puts 3.times.map { TCPServer.new("127.0.0.1", 0) }.map { |s| s.addr[1] }.join(" ")')

if [ -z "${WINDLASS_TEST_POSTGRES:-}" ]; then
    programs() { ls -d /usr/lib/postgresql/*/bin/postgres 2>/dev/null | sort -V | tail -1 || true; }
    if [ -z "$(programs)" ]; then
        echo "installing: postgresql" >&2
        { apt-get update -qq && apt-get install -y -qq --no-install-recommends postgresql >/dev/null; } ||
            { echo "this example needs a PostgreSQL server: apt-get install postgresql" >&2; exit 69; }
    fi
    bin=$(dirname "$(programs)")
    mkdir "$work/postgres"
    as=()
    if [ "$(id -u)" = 0 ]; then                                      # PostgreSQL does not run as root
        chown postgres "$work/postgres"
        as=(setpriv --reuid postgres --regid postgres --clear-groups --)
    fi
    "${as[@]}" "$bin/initdb" -D "$work/postgres/data" -A trust -U app >/dev/null
    "${as[@]}" "$bin/postgres" -D "$work/postgres/data" -c listen_addresses=127.0.0.1 -c unix_socket_directories= \
        -p "$pg" >"$work/postgres.log" 2>&1 &
    started+=($!)
    server=postgres://app@127.0.0.1:$pg/postgres
    until psql "$server" -qc "SELECT 1" >/dev/null 2>&1; do kill -0 "${started[0]}"; done
else
    server=$WINDLASS_TEST_POSTGRES
fi
psql "$server" -qc "CREATE DATABASE $database"
export DATABASE_URL=${server%/*}/$database PORT=$web NUDGE_PORT=$udp
sql() { psql "$DATABASE_URL" -qAtc "$1"; }

# The application's own tables, then what Windlass needs beside them.
ruby "$here/migrate.rb"
"$WINDLASS" attach "$DATABASE_URL" | tail -1
"$WINDLASS" attach "$DATABASE_URL" --apply >"$work/attached"

for name in a b; do
    mkdir "$work/$name"
    cat >"$work/$name/windlass.toml" <<END
[store]
url = "\${DATABASE_URL}"
lease = "10s"
$([ $name = b ] && printf '[nudge]\nudp = "127.0.0.1:%s"' "$udp")

[queue.is_spam]
lua = "$here/modules/is_spam.lua"
data = "yaml"
slots = 2

[queue.hide]
run = ["psql", "$DATABASE_URL", "-q", "-v", "id={data.id}", "-f", "$here/hide.sql"]
END
done
serve() {
    exec {ready}< <(WINDLASS_DIR=$work/$1 exec "$WINDLASS" serve 2>>"$work/$1.log")
    started+=($!)
    read -r -u "$ready" _
}
serve a
first=$!
serve b
ruby "$here/app.rb" >"$work/app.log" 2>&1 &
started+=($!)
until curl -fsS "http://127.0.0.1:$web/comments/0" -o "$work/none" 2>/dev/null || [ $? = 22 ]; do kill -0 "$!"; done

# Comments come in; every fifth is spam. In the middle one of the servers is killed.
post() { curl -fsS "http://127.0.0.1:$web/comments" "$@"; }
for n in $(seq "$comments"); do
    if [ $((n % 5)) = 0 ]; then post -d "text=BUY NOW, comment $n"; else post -d "text=a thought, comment $n"; fi
    [ "$n" != $((comments / 2)) ] || { kill -9 "$first"; echo "killed one of two servers" >&2; }
done >"$work/posted"
# An upload that is rolled back, and one that nobody can judge.
post -d "text=never there" -d fails=1 2>/dev/null && { echo "wrong: a rolled-back upload was accepted" >&2; exit 1; }
puzzle=$(post -d "text=really???")

wait_for() {                                                         # a statement, and what it must say in the end
    local begun=$SECONDS
    until [ "$(sql "$1")" = "$2" ]; do
        [ $((SECONDS - begun)) -lt 120 ] || { echo "wrong: $1 says $(sql "$1"), expected $2" >&2; exit 1; }
    done
}
wait_for "SELECT count(*) FROM jobs WHERE status NOT IN ('completed', 'error')" 0
told=$(curl -sS "http://127.0.0.1:$web/comments/$puzzle")
case $told in "error 1 "*"cannot tell whether comment $puzzle is spam"*) ;; *) echo "wrong: $told" >&2; exit 1 ;; esac
curl -sS -X PUT -d "text=really." "http://127.0.0.1:$web/comments/$puzzle" >/dev/null
wait_for "SELECT status FROM jobs WHERE taskable_id = $puzzle" completed

spam=$((comments / 5))
wait_for "SELECT count(*) FROM jobs WHERE status <> 'completed'" 0
wait_for "SELECT count(*) FILTER (WHERE name = 'is_spam'), count(*) FILTER (WHERE name = 'hide') FROM jobs" "$((comments + 1))|$spam"
wait_for "SELECT count(*) FROM comments WHERE hidden AND text LIKE 'BUY NOW%'" "$spam"
wait_for "SELECT count(*) FROM comments WHERE hidden AND text NOT LIKE 'BUY NOW%'" 0
wait_for "SELECT count(*) FROM comments WHERE text = 'never there'" 0
wait_for "SELECT count(*) FROM jobs WHERE data LIKE '%never there%' OR locked_queue_id <> '' OR attempts < 1" 0
echo "right: $((comments + 1)) comments judged by rows, $spam hidden, none of a rolled-back upload, one retried by SQL, one server killed"
