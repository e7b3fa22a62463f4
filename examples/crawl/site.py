"""Writes a site of 5,000 pages with loops, broken links, slow pages and a trap, and the nginx.conf that serves it.

usage: site.py DIRECTORY PORT [PAGES [BYTES-A-SECOND]]: the last is what slow pages have
"""
import pathlib, sys

place, port = pathlib.Path(sys.argv[1]), sys.argv[2]
pages, rate = [*map(int, sys.argv[3:]), *(5000, 1000)[len(sys.argv) - 3:]]
root = place / "site"


def path(page):
    if page == 0:
        return "/"
    folder = "slow" if page % 250 == 249 else f"p/{page % 50}"      # 20 slow pages
    return f"/{folder}/{page}.html"


for page in range(pages):
    links = [path(child) for child in range(8 * page + 1, 8 * page + 9) if child < pages]
    links += ["/", path((page - 1) // 8 if page else 0), path(page * 7919 % pages), path(page) + "#top"]
    if page % 100 == 7:
        links.append(f"/gone/{page}.html")                          # 50 broken links
    links += {3: ["/trap/"], 4: ["/moved"], 5: ["/private/"]}.get(page, [])
    file = root / (path(page).lstrip("/") or "index.html")
    file.parent.mkdir(parents=True, exist_ok=True)
    items = "\n".join(f'<li><a href="{link}">{link}</a>' for link in links)
    text = "some words, as pages have them, " * (40 if "/slow/" in str(file) else 10)
    file.write_text(f"<!doctype html><title>page {page}</title><h1>page {page}</h1><p>{text}<ul>\n{items}\n</ul>\n")
(root / "robots.txt").write_text("User-agent: *\nDisallow: /private/\n")

temp = " ".join(f"{kind}_temp_path {place}/{kind};" for kind in "client_body proxy fastcgi uwsgi scgi".split())
(place / "nginx.conf").write_text(f"""
daemon off; master_process off; pid {place}/pid; error_log {place}/error.log; events {{ worker_connections 512; }}
http {{
    types {{ text/html html; text/plain txt; }} access_log off; keepalive_requests 1000000; {temp}
    server {{
        listen 127.0.0.1:{port}; root {place}/site;
        location /slow/ {{ limit_rate {rate}; }}
        location /trap/ {{ default_type text/html; return 200 "<a href='${{uri}}x'>and on and on</a>"; }}
        location = /moved {{ return 302 /p/7/7.html; }}
        location /private/ {{ default_type text/html; return 200 "nobody may read this"; }}
    }}
}}
""")
