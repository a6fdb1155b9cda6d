"""From rankings to numbers that can be compared, and to a report that people read.

tasks, text_tasks   queries and judgements over a collection; tasks that carry their own texts
readers             from a path to a task: useb (the paper's four), labelled (STS, SICK, a user's own), BEIR;
                    text_files and tables decode what they read
scorers, scoring    systems (vectors, BM25), and each protocol's way of ranking and scoring
run, run_file       hits -> documents ranked for each query; run files in TREC's format
measures            what is measured, and scoring query by query
rows, pair_rows     per-query and per-pair rows and their Parquet files
significance        bootstrap interval, paired randomisation test, Holm's correction
pair_statistics     average precision and correlations of pairs, resampled and exchanged
summary             rows -> means, intervals, comparisons with a baseline (pair_summary, table_values)
report              JSON, Markdown and HTML (report_input, report_markdown, report_html,
                    report_plots, report_style, report_text)
"""
