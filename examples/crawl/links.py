"""A worker: a saved page and its address a line, and in reply the links of the same host that it has. That each of them
is fetched once is the affair of the queue."""
import html.parser, json, re, sys, urllib.parse

LEFT_OUT = re.compile(sys.argv[1])


class Links(html.parser.HTMLParser):
    def handle_starttag(self, tag, attributes):
        link, _part = urllib.parse.urldefrag(urllib.parse.urljoin(self.page, dict(attributes).get("href") or ""))
        same = urllib.parse.urlsplit(link).netloc == urllib.parse.urlsplit(self.page).netloc
        if tag == "a" and same and not LEFT_OUT.search(link):
            self.found.append({"queue": "fetch", "data": link})


for line in sys.stdin:
    links = Links()
    file, links.page = line.rstrip("\n").split(" ", 1)
    links.found = []
    links.feed(open(file).read())
    print(json.dumps({"status": "ok", "emit": links.found}), flush=True)
