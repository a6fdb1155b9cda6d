"""From rankings to numbers that can be compared, and to a report that people read.

tasks             queries and judgements, the BEIR-layout reader
run               hits -> documents ranked for each query
measures          what is measured, and scoring query by query
rows              per-query rows and their Parquet file
significance      bootstrap interval, paired randomisation test, Holm's correction
summary           rows -> means, intervals, comparisons with a baseline
report            JSON, Markdown and HTML (report_input, report_markdown, report_html,
                  report_plots, report_style, report_text)
"""
