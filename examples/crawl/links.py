"""A worker: a saved page and its address a line, and in reply the links of the same host that it has not seen yet."""
import html.parser, json, sys, urllib.parse

seen = set()


class Links(html.parser.HTMLParser):
    def handle_starttag(self, tag, attributes):
        link = urllib.parse.urldefrag(urllib.parse.urljoin(self.page, dict(attributes).get("href") or ""))[0]
        same = urllib.parse.urlsplit(link).netloc == urllib.parse.urlsplit(self.page).netloc
        if tag == "a" and same and len(link) < 80 and "/private/" not in link and link not in seen:
            seen.add(link)                    # a longer one is a trap
            self.found.append({"queue": "fetch", "data": link})


for line in sys.stdin:
    links = Links()
    file, links.page = line.rstrip("\n").split(" ", 1)
    links.found = []
    links.feed(open(file).read())
    print(json.dumps({"status": "ok", "emit": links.found}), flush=True)
