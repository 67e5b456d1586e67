"""Values and findings as text: below the report, because error messages and gate sentences quote them too."""
