"""Turns files of office programs, web pages and mail into Markdown, in a process of its own.

`process` starts and limits that process, `child` is what runs in it, and each kind of file has a
module, whose `convert` is called there.
"""
