#!/usr/bin/env bash
# Calls a small handler behind nginx: single, in batches, signed, and held back by 429.
# usage: examples/webhooks/run.sh      WINDLASS=/path/to/windlass uses that binary instead of building one
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)

for need in nginx:nginx-light python3:python3 curl:curl; do
    command -v "${need%:*}" >/dev/null && continue
    echo "installing: ${need#*:}" >&2
    { apt-get update -qq && apt-get install -y -qq --no-install-recommends "${need#*:}" >/dev/null; } ||
        { echo "this example needs ${need%:*}: apt-get install ${need#*:}" >&2; exit 69; }
done
# The library that checks the signatures, in a directory of its own.
export PYTHONPATH=$here/../../target/python
if ! python3 -c "import standardwebhooks" 2>/dev/null; then
    echo "installing: standardwebhooks" >&2
    python3 -m pip install --quiet --target "$PYTHONPATH" standardwebhooks==1.1.0 ||
        { echo "this example needs the Python package standardwebhooks: pip install standardwebhooks" >&2; exit 69; }
fi
if [ -z "${WINDLASS:-}" ]; then
    (cd "$here/../.." && cargo build --release --quiet --bin windlass)
    WINDLASS=$here/../../target/release/windlass
fi

work=$(mktemp -d)
started=()
trap 'kill "${started[@]}" 2>/dev/null; wait; rm -rf "$work"' EXIT
export WINDLASS_DIR=$work/data
mkdir "$work/data"
read -r web handler < <(python3 -c '
import socket
a, b = socket.create_server(("127.0.0.1", 0)), socket.create_server(("127.0.0.1", 0))
print(a.getsockname()[1], b.getsockname()[1])')
umask 077
printf 'whsec_%s\n' "$(head -c 32 /dev/urandom | base64)" >"$work/data/hook.secret"

cat >"$work/nginx.conf" <<END
daemon off; master_process off; pid $work/pid; error_log $work/error.log; events { }
http {
    access_log off; client_body_temp_path $work/b; proxy_temp_path $work/p; fastcgi_temp_path $work/f;
    uwsgi_temp_path $work/u; scgi_temp_path $work/s;
    limit_req_zone \$server_name zone=few:1m rate=10r/s;
    server {
        listen 127.0.0.1:$web;
        location / { proxy_pass http://127.0.0.1:$handler; }
        location /busy {
            limit_req zone=few burst=4 nodelay; limit_req_status 429; error_page 429 = @later;
            proxy_pass http://127.0.0.1:$handler;
        }
        location @later { add_header Retry-After 1 always; return 429; }
    }
}
END
cat >"$work/data/windlass.toml" <<END
[limits]
hosts = ["127.0.0.1:$web"]

[queue.hook]
url = "http://127.0.0.1:$web/hook"
secret_file = "hook.secret"

[queue.rows]
url = "http://127.0.0.1:$web/rows"
batch_size = 100
secret_file = "hook.secret"
backoff = "10ms"

[queue.busy]
url = "http://127.0.0.1:$web/busy"
attempts = 1
END

python3 "$here/handler.py" "$handler" "$work/data/hook.secret" & started+=($!)
nginx -p "$work" -c "$work/nginx.conf" 2>/dev/null & started+=($!)
curl --silent --fail --retry 30 --retry-all-errors --retry-delay 1 "http://127.0.0.1:$web/" >/dev/null
exec 3< <(exec "$WINDLASS" serve 2>"$work/log"); started+=($!)
read -r _ <&3 || { echo "WRONG: no server" >&2; cat "$work/log" >&2; exit 1; }

seq -f 'hook %g' 20 | "$WINDLASS" push hook - >/dev/null
seq -f 'row %g' 1000 | "$WINDLASS" push rows - >/dev/null
seq -f 'busy %g' 10 | "$WINDLASS" push busy - >/dev/null
"$WINDLASS" wait --drained || { echo "WRONG: some jobs failed" >&2; "$WINDLASS" ls state:failed >&2; exit 1; }

# Somebody without the secret is sent away.
forged=$(curl --silent --output "$work/forged" --write-out '%{http_code}' --data 'hook 21' --header 'webhook-id: 21' \
    --header "webhook-timestamp: $(date +%s)" --header 'webhook-signature: v1,Zm9yZ2Vk' "http://127.0.0.1:$web/hook")
[ "$forged" = 401 ] || { echo "WRONG: a forged call was answered with $forged" >&2; exit 1; }

told=$(curl --silent --fail "http://127.0.0.1:$handler/")
echo "the handler: $told"
python3 - "$told" <<'END' || { echo "WRONG: that is not what was pushed" >&2; exit 1; }
import json, sys
told = json.loads(sys.argv[1])
wanted = {"hook": 20, "rows": 1000, "busy": 10, "bad signatures": 1}
sys.exit(any(told[name] != count for name, count in wanted.items()) or told["calls of rows"] > 200)
END
echo "right: 20 hooks, 1000 rows in batches and 10 jobs behind a 429, all signed calls verified, a forged one refused"
