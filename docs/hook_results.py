"""A hook of MkDocs that puts the results' pages of benchmarks/ into the site."""

from pathlib import Path

from mkdocs.structure.files import File

ROOT = Path(__file__).resolve().parents[1]


def on_files(files, config):
    """Adds the pages and their pictures: RESULTS.md as results.md, results/NAME as results/NAME."""
    folder = ROOT / "benchmarks"
    found = [path for kind in ("*.md", "pictures/*.svg") for path in folder.glob(f"results/{kind}")]
    for path in found:
        name = path.relative_to(folder).as_posix()
        files.append(File(name, str(folder), config["site_dir"], config["use_directory_urls"]))
    return files


def on_page_markdown(markdown, page, config, files):
    """Links out of benchmarks/results and of CHANGELOG.md, as they are within the site."""
    if page.file.src_uri == "changelog.md":
        return (ROOT / "CHANGELOG.md").read_text("utf-8").replace("](docs/", "](")
    if not page.file.src_uri.startswith("results/"):
        return markdown
    code = f"{config['repo_url']}/blob/main/benchmarks"
    markdown = markdown.replace("](../../docs/", "](../")
    markdown = markdown.replace("](../RESULTS.md", "](../results.md")
    return markdown.replace("](rows/", f"]({code}/results/rows/")
