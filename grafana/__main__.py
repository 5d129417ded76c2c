"""Write dashboards/*.json."""

from grafana.boards import FOLDER, written

for name, text in written().items():
    (FOLDER / name).write_text(text)
