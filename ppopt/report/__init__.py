"""Reports: what a person looks at. A page (HTML), tables (rich) and a text Gantt chart."""
