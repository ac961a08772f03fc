"""Problems, references and tools that several tests share."""
