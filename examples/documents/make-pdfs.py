"""Writes so many small PDFs into a directory, and beside each the words that are in it: make-pdfs.py COUNT DIRECTORY"""
import pathlib, sys

count, place = int(sys.argv[1]), pathlib.Path(sys.argv[2])
WORDS = "winch rope anchor tide harbour mast keel sail deck rudder crew cargo chain hoist buoy".split()


def pdf(lines):
    text = "BT /F1 11 Tf 14 TL 60 780 Td " + " ".join(f"({line}) Tj T*" for line in lines) + " ET"
    objects = [
        "<< /Type /Catalog /Pages 2 0 R >>",
        "<< /Type /Pages /Kids [3 0 R] /Count 1 >>",
        "<< /Type /Page /Parent 2 0 R /MediaBox [0 0 595 842] /Contents 5 0 R "
        "/Resources << /Font << /F1 4 0 R >> >> >>",
        "<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
        f"<< /Length {len(text)} >>\nstream\n{text}\nendstream",
    ]
    body, places = "%PDF-1.4\n", []
    for number, content in enumerate(objects, 1):
        places.append(len(body))
        body += f"{number} 0 obj\n{content}\nendobj\n"
    table = "".join(f"{at:010} 00000 n \n" for at in places)
    size = len(objects) + 1
    end = f"trailer << /Size {size} /Root 1 0 R >>\nstartxref\n{len(body)}\n%%EOF\n"
    return f"{body}xref\n0 {size}\n0000000000 65535 f \n{table}{end}"


for n in range(count):
    words = [WORDS[(n * n + n * at + at // 7) % len(WORDS)] for at in range(80)] + [f"document{n}"]
    lines = [" ".join(words[at : at + 8]) for at in range(0, len(words), 8)]
    (place / f"doc {n:03}.pdf").write_text(pdf(lines))
    (place / f"doc {n:03}.words").write_text("\n".join(words))
