"""Planning a read of stores: the directories, their files, the splits for tasks, and the messages that are missing."""
